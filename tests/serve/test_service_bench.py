"""What `harena bench service` makes of its numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harena.serve import bench
from harena.serve.bench import StageTimes

taken = st.lists(st.floats(0, 1e6), min_size=1)


@given(taken)
def test_percentiles_are_of_what_was_measured_and_in_order(found: list[float]) -> None:
    p50, p95, p99 = (bench.percentile(found, share) for share in (0.5, 0.95, 0.99))
    assert {p50, p95, p99} <= set(found)
    assert p50 <= p95 <= p99


@given(st.lists(st.lists(st.floats(0, 1e6), min_size=3, max_size=3).map(sorted), min_size=1, max_size=12))
def test_longer_stage_never_has_the_shorter_bar(found: list[list[float]]) -> None:
    stages = [StageTimes("exec", "local", *values) for values in sorted(found)]
    bars = [line.count("█") for line in bench.plot(stages).splitlines()]
    assert bars == sorted(bars)
    assert max(bars) <= bench.BAR


def test_real_server_is_measured_and_ends() -> None:
    with bench.server() as served:
        boxes = bench.SandboxPool(served.url, token=served.token, warm=1, max_live=1)
        with boxes as pool:
            assert pool.map(["print(1)"])[0].stdout == b"1\n"
