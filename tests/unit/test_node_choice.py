"""Which node gets a box, and when a failed one is tried again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena.backends.cluster import choice
from harena.backends.cluster.choice import NodeHealth
from harena.backends.cluster.roster import FileRoster, node_url, roster_of
from harena.errors import SpecError

NOW = 1000.0
times = st.floats(NOW - 100, NOW + 100)
healths = st.builds(
    NodeHealth,
    name=st.just(""),
    cores=st.integers(1, 64),
    boxes=st.integers(0, 200),
    others=st.integers(0, 200),
    failures=st.integers(0, 40),
    retry_at=times,
    full_until=times,
    leaving=st.booleans(),
)
nodes = st.lists(healths, max_size=12).map(
    lambda found: [replace(node, name=f"n{number}") for number, node in enumerate(found)]
)


@given(nodes, st.integers())
def test_every_node_that_may_be_used_is_asked_once_and_no_other(found: list[NodeHealth], seed: int) -> None:
    asked = choice.attempts(found, now=NOW, rng=Random(seed))
    assert len(asked) == len(set(asked))
    by_name = {node.name: node for node in found}
    healthy = {node.name for node in found if node.healthy}
    assert healthy <= set(asked)
    assert asked[: len(healthy)] == [name for name in asked if name in healthy]
    for name in set(asked) - healthy:
        assert not by_name[name].leaving
        assert not healthy or by_name[name].retry_at <= NOW
    if not healthy:
        assert set(asked) == {node.name for node in found if not node.leaving}


@given(nodes, st.integers())
def test_first_is_not_the_most_loaded_of_several(found: list[NodeHealth], seed: int) -> None:
    asked = choice.attempts(found, now=NOW, rng=Random(seed))
    free = [node for node in found if node.healthy and node.full_until <= NOW]
    if len(free) > 1:
        first = next(node for node in free if node.name == asked[0])
        assert any(first.load <= node.load for node in free if node is not first)


@given(st.integers(1, 8), st.integers(0, 300), st.integers())
def test_boxes_spread_over_equal_nodes(count: int, boxes: int, seed: int) -> None:
    rng = Random(seed)
    held = {f"n{number}": 0 for number in range(count)}
    for _ in range(boxes):
        found = [NodeHealth(name=name, boxes=many) for name, many in held.items()]
        held[choice.attempts(found, now=NOW, rng=rng)[0]] += 1
    assert max(held.values()) - min(held.values()) <= (1 if count <= 2 else 12)


@given(healths, st.integers(1, 60), st.integers())
def test_failed_node_is_tried_again_ever_later_but_within_a_bound(node: NodeHealth, times: int, seed: int) -> None:
    rng = Random(seed)
    for _ in range(times):
        before, node = node, choice.failed(node, now=NOW, rng=rng)
        assert node.failures == before.failures + 1
        assert NOW + choice.FIRST_RETRY_S / 2 <= node.retry_at <= NOW + choice.LAST_RETRY_S
        assert not node.healthy
    node = choice.answered(node, cores=4, total=0, ours_before=0, leaving=False)
    assert node.healthy


@pytest.mark.parametrize(
    ("before", "after", "total", "others"), [(3, 1, 3, 0), (1, 3, 1, 0), (1, 1, 4, 3), (2, 0, 3, 1)]
)
def test_boxes_that_came_or_went_while_a_node_was_asked_are_ours(
    before: int, after: int, total: int, others: int
) -> None:
    node = NodeHealth(name="node", boxes=after)
    node = choice.answered(node, cores=1, total=total, ours_before=before, leaving=False)
    assert node.others == others


def test_refusing_node_is_asked_after_the_others() -> None:
    full = choice.refused(NodeHealth(name="full"), now=NOW)
    busy = NodeHealth(name="busy", boxes=50)
    assert choice.attempts([full, busy], now=NOW, rng=Random(1)) == ["busy", "full"]
    assert choice.attempts([full, busy], now=NOW + 2, rng=Random(1))[0] == "full"


@pytest.mark.parametrize(
    ("word", "url"),
    [
        ("node1", "https://node1:8700"),
        ("node1:9000", "https://node1:9000"),
        ("127.0.0.1:9000", "http://127.0.0.1:9000"),
        ("localhost", "http://localhost:8700"),
        ("[::1]:9000", "http://[::1]:9000"),
        ("[::1]", "http://[::1]:8700"),
        ("[2001:db8::1]", "https://[2001:db8::1]:8700"),
        ("/run/harena.sock", "unix:/run/harena.sock"),
        ("https://127.0.0.1:1", "https://127.0.0.1:1"),
    ],
)
def test_node_is_https_unless_it_is_on_this_machine(word: str, url: str) -> None:
    assert node_url(word, "list") == url


@pytest.mark.parametrize(
    "url",
    [
        *(
            "harena://",
            "harena://a,,b",
            "harena://a,a",
            "harena://http://10.0.0.1:1",
            "harena://a:x",
            "harena://u:p@h:1",
        ),
        *("harena://a/b", "harena://unix:relative", "nodes:/no/such/file", "nodes:"),
    ],
)
def test_list_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(SpecError):
        roster_of(url, None)


def test_file_is_read_again_when_it_changes_and_kept_when_it_is_broken(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("# two of them\nn1\n\nn2:9000  # the other\n")
    roster = FileRoster(str(file), None)
    assert roster.names() == ("https://n1:8700", "https://n2:9000")
    file.write_text("n3\n")
    assert roster.names() == ("https://n3:8700",)
    for broken in (b"a b c/d\n", b"\xff\n", b"", b"x" * (1 << 21)):
        file.write_bytes(broken)
        assert roster.names() == ("https://n3:8700",)
    file.unlink()
    assert roster.names() == ("https://n3:8700",)
    file.write_text("n4\n")
    assert roster.names() == ("https://n4:8700",)
