"""`SandboxPool.map` and `check_deterministic`: order, isolation from one program to the next, and honest verdicts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from harena import BoxLost, Limits, Result, SandboxPool, Spec, SpecError, Verdict
from harena.sandbox.batch import PoolBatch
from support.leaks import settle


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(warm=2, limits=Limits(wall_s=10, memory_mb=128, processes=16)) as pool:
        yield pool


both = pytest.mark.parametrize("group", [None, 4], ids=["fresh", "group"])

BAD = {
    "raise ValueError('x')": Verdict.EXIT,
    "import sys; sys.exit(3)": Verdict.EXIT,
    "import os; os._exit(4)": Verdict.EXIT,
    "def f(:": Verdict.EXIT,
    "while True: pass": Verdict.TIME,
    "import time; time.sleep(1000)": Verdict.TIME,
    "x = 'a' * 10**10": Verdict.MEMORY,
    "x = []\nwhile True: x.append('a' * 10**6)": Verdict.MEMORY,
    "import os\nwhile True: os.fork()": Verdict.PROCESSES,
    "import ctypes; ctypes.string_at(0)": Verdict.SIGNAL,
    "import os; os.kill(os.getpid(), 9)": Verdict.SIGNAL,
    "print('x' * 10**7)": Verdict.OUTPUT,
}


@both
def test_results_come_in_the_order_of_the_programs(pool: SandboxPool, group: int | None) -> None:
    programs = [f"import time; time.sleep({0.05 * (number % 3)}); print({number})" for number in range(30)]
    assert [result.stdout for result in pool.map(programs, group=group)] == [b"%d\n" % number for number in range(30)]


@pytest.mark.parametrize(("count", "group"), [(1500, None), (6000, 50)], ids=["fresh", "group"])
def test_takes_thousands_in_one_call(pool: SandboxPool, count: int, group: int | None) -> None:
    results = pool.map([f"print({number})" for number in range(count)], group=group)
    assert [int(result.stdout) for result in results] == list(range(count))
    assert all(result.ok for result in results)


def test_nothing_in_nothing_out(pool: SandboxPool) -> None:
    assert pool.map([]) == []
    assert pool.map(iter(["print(1)"]))[0].stdout == b"1\n"  # pyright: ignore[reportArgumentType]


@both
def test_progress_counts_up_to_the_end(pool: SandboxPool, group: int | None) -> None:
    seen: list[tuple[int, int]] = []
    pool.map(["print(1)", "raise ValueError", "print(2)"] * 5, group=group, progress=lambda *turn: seen.append(turn))
    assert seen == [(number, 15) for number in range(1, 16)]


def test_progress_that_raises_ends_the_call_and_not_the_pool(pool: SandboxPool) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        pool.map(["print(1)", "while True: pass"] * 4, progress=stop)
    assert [result.stdout for result in pool.map(["print(1)"] * 4)] == [b"1\n"] * 4


def test_a_result_that_is_missing_does_not_shift_the_others(pool: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    settle = PoolBatch._settle  # pyright: ignore[reportPrivateUsage]

    def lose(self: PoolBatch, index: int, result: Result) -> None:
        settle(self, index, result)
        self._results[0] = None  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(PoolBatch, "_settle", lose)
    with pytest.raises(BoxLost, match="program 0 was lost"):
        pool.map(["print(1)", "print(2)"])


@pytest.mark.parametrize("group", [None, 3])
def test_output_longer_than_any_message_spoils_no_batch(pool: SandboxPool, group: int | None) -> None:
    loud = "import sys\nfor _ in range(70): sys.stdout.write('x' * 1_000_000)\n"
    limits = Limits(output_bytes=80_000_000, wall_s=120, memory_mb=1024)
    results = pool.map(["print(1)", loud, "print(2)"], limits=limits, group=group)
    assert [(result.ok, len(result.stdout)) for result in results] == [(True, 2), (True, 70_000_000), (True, 2)]


@pytest.mark.timeout(120)
def test_large_programs_with_large_output_do_not_wait_for_each_other(pool: SandboxPool) -> None:
    """The box writes while the host does: neither may wait for the other to read."""
    source = f"text = {'y' * 1_500_000!r}\nprint(end='z' * 2_000_000)\n"
    results = pool.map([source] * 12, limits=Limits(output_bytes=4_000_000))
    assert [(result.ok, len(result.stdout)) for result in results] == [(True, 2_000_000)] * 12


@both
def test_one_bad_program_never_spoils_another(pool: SandboxPool, group: int | None) -> None:
    programs = [source for bad in BAD for source in (f"print({len(bad)})", bad)]
    results = pool.map(programs, group=group, limits=Limits(wall_s=1, memory_mb=128, processes=16, output_bytes=10_000))
    assert [result.stdout for result in results[::2]] == [b"%d\n" % len(bad) for bad in BAD]
    assert all(result.ok for result in results[::2])
    assert dict(zip(BAD, [result.verdict for result in results[1::2]], strict=True)) == BAD


COPES = {
    "processes": (
        "import os, time\ntry:\n    for _ in range(40):\n"
        "        if not os.fork(): time.sleep(0.1); os._exit(0)\nexcept OSError: pass"
    ),
    "memory": "import os\nif not os.fork():\n    x = bytearray(100 << 20); y = bytearray(100 << 20)\nos.wait()",
}


@pytest.mark.parametrize("name", COPES)
def test_limit_that_one_program_met_and_survived_is_not_the_next_ones(pool: SandboxPool, name: str) -> None:
    limits = Limits(wall_s=10, memory_mb=128, processes=16)
    assert all(result.ok for result in pool.map([COPES[name]] * 12, limits=limits))
    for result in pool.map(["raise ValueError('x')"] * 12, limits=limits):
        assert result.verdict is Verdict.EXIT, result


def test_fork_bombs_do_not_colour_the_verdicts_of_their_neighbours(pool: SandboxPool) -> None:
    """The wall clock leaves a bomb that other work keeps from the processor enough time to reach its limit: one that
    has not reached it at the deadline is rightly TIME."""
    bomb, sleeper = "import os\nwhile True: os.fork()", "import os; os.read(os.pipe()[0], 1)"
    results = pool.map([bomb, sleeper] * 12, limits=Limits(wall_s=1.5, memory_mb=64, processes=16))
    assert Counter(result.verdict for result in results[::2]) == {Verdict.PROCESSES: 12}
    assert Counter(result.verdict for result in results[1::2]) == {Verdict.TIME: 12}


@both
def test_exceptions_come_with_their_traceback(pool: SandboxPool, group: int | None) -> None:
    result = pool.map(["def f():\n    raise ValueError('x')\nf()"], group=group)[0]
    assert (result.verdict, result.exit_code) == (Verdict.EXIT, 1)
    assert result.stderr.startswith(b"Traceback")
    assert result.stderr.endswith(b"ValueError: x\n")
    assert b"/.harena" not in result.stderr


@both
@pytest.mark.parametrize("source", ["\ud800", "a\0b", "print('ü€😀')", "", "#" * 100_000, "print(1)\r\nprint(2)"])
def test_any_text_is_a_program(pool: SandboxPool, source: str, group: int | None) -> None:
    result = pool.map([source, "print(1)"], group=group)
    assert result[0].verdict in (Verdict.OK, Verdict.EXIT)
    assert result[1].stdout == b"1\n"


@pytest.mark.parametrize(
    ("dirty", "look"),
    [
        ("import math; math.mark = 1", "import math; print(hasattr(math, 'mark'))"),
        ("import sys; sys.modules['planted'] = sys", "import sys; print('planted' in sys.modules)"),
        ("import os; os.environ['MARK'] = '1'", "import os; print('MARK' in os.environ)"),
        ("open('/workspace/a', 'w')", "import os; print(os.path.exists('/workspace/a'))"),
        ("open('/tmp/a', 'w')", "import os; print(os.path.exists('/tmp/a'))"),
        ("open('/dev/shm/a', 'w')", "import os; print(os.path.exists('/dev/shm/a'))"),
        ("import os; os.chdir('/tmp')", "import os; print(os.getcwd() == '/tmp')"),
        ("import os; os.umask(0o777)", "import os; print(os.umask(0) == 0o777)"),
    ],
)
def test_fresh_programs_see_nothing_of_each_other_and_a_group_does(pool: SandboxPool, dirty: str, look: str) -> None:
    """The second half is the control: without it the first would prove nothing."""
    assert {result.stdout for result in pool.map([dirty, look] * 6)[1::2]} == {b"False\n"}
    assert pool.map([dirty, look], group=2)[1].stdout == b"True\n"


def test_programs_of_different_groups_see_nothing_of_each_other(pool: SandboxPool) -> None:
    dirty, look = "import math; math.mark = 1", "import math; print(hasattr(math, 'mark'))"
    shown = [result.stdout for result in pool.map([dirty, look, look, look] * 3, group=2)]
    assert shown == [b"", b"True\n", b"False\n", b"False\n"] * 3


def test_programs_of_a_group_have_limits_of_their_own(pool: SandboxPool) -> None:
    programs = ["import time; time.sleep(0.6); print(1)"] * 4
    assert [result.stdout for result in pool.map(programs, group=4, limits=Limits(wall_s=2))] == [b"1\n"] * 4
    programs = ["print('x' * 900)"] * 4
    assert all(result.ok for result in pool.map(programs, group=4, limits=Limits(output_bytes=1000)))


def test_stdin_goes_to_its_program(pool: SandboxPool) -> None:
    programs = ["print(input() * 2)"] * 5 + ["import sys; print(len(sys.stdin.buffer.read()))"]
    inputs = [b"%d\n" % number for number in range(5)] + [b"x" * 1_000_000]
    results = pool.map(programs, stdin=inputs)
    assert [result.stdout for result in results] == [b"00\n", b"11\n", b"22\n", b"33\n", b"44\n", b"1000000\n"]
    assert b"EOFError" in pool.map(["input()"])[0].stderr


def test_bad_calls_are_refused_before_anything_runs(pool: SandboxPool) -> None:
    with pytest.raises(SpecError, match="stdin"):
        pool.map(["1", "2"], stdin=[b""])
    with pytest.raises(SpecError, match="stdin"):
        pool.map(["1"], stdin=[b""], group=2)
    with pytest.raises(SpecError, match="group=0"):
        pool.map(["1"], group=0)
    with pytest.raises(SpecError, match="program 1"):
        pool.map(["1", b"2"])  # pyright: ignore[reportArgumentType]
    with pytest.raises(SpecError, match="program 0"):
        pool.map(["x" * (17 << 20)])


def test_many_threads_may_map_at_once(pool: SandboxPool) -> None:
    def work(number: int) -> list[Result]:
        return pool.map([f"print({number}, {turn})" for turn in range(40)])

    with ThreadPoolExecutor(5) as threads:
        for number, results in enumerate(threads.map(work, range(5))):
            assert [result.stdout for result in results] == [b"%d %d\n" % (number, turn) for turn in range(40)]


def test_pool_without_warm_boxes_works() -> None:
    with SandboxPool(warm=0, max_live=1) as pool:
        assert pool.map(["print(1)"] * 3)[2].stdout == b"1\n"


def test_programs_see_the_spec() -> None:
    with SandboxPool(Spec(env={"A": "1"}, hostname="ring", workspace_mb=3), warm=1) as pool:
        source = "import os\nprint(os.environ['A'], os.uname().nodename, os.statvfs('.').f_blocks * 4096 >> 20)"
        assert pool.map([source])[0].stdout == b"1 ring 3\n"


# ---- determinism ----


@pytest.mark.parametrize(
    "source",
    [
        "print(sum(i * i for i in range(1000)))",
        "print(sorted({'a', 'b', 'c'}), {'k': 1, 'j': 2})",
        "import random; random.seed(7); print(random.random())",
        "raise ValueError('always')",
        "import sys; sys.exit(3)",
        "print(hash(1), hash((1, 2)))",
    ],
)
def test_deterministic_programs_pass(pool: SandboxPool, source: str) -> None:
    answer = pool.check_deterministic(source)
    assert answer.deterministic
    assert len(answer.digests) == len(answer.results) == 3
    assert len(set(answer.digests)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "print({'alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta'})",
        "print(list(set('abcdefghijklmnop')))",
        "print(id(object()))",
        "class A: pass\nprint(A())",
        "print(hash('text'))",
        "import random; print(random.random())",
        "import os; print(os.urandom(8))",
        "import time; print(time.time())",
        "import uuid; print(uuid.uuid4())",
        "import sys; print(sys.stdout)\nprint(hash(sys.stdout))",
    ],
)
def test_programs_that_differ_from_run_to_run_fail(pool: SandboxPool, source: str) -> None:
    answer = pool.check_deterministic(source)
    assert not answer.deterministic
    assert len(set(answer.digests)) > 1


@pytest.mark.parametrize("runs", [2, 5])
def test_determinism_is_checked_as_often_as_asked(pool: SandboxPool, runs: int) -> None:
    answer = pool.check_deterministic("print(1)", runs=runs)
    assert (answer.deterministic, len(answer.results)) == (True, runs)


def test_determinism_needs_something_to_compare(pool: SandboxPool) -> None:
    with pytest.raises(SpecError, match="at least 2"):
        pool.check_deterministic("print(1)", runs=1)


def test_determinism_can_be_checked_by_a_small_pool() -> None:
    with SandboxPool(warm=1, max_live=2) as pool:
        assert pool.check_deterministic("print(1)").deterministic
        assert not pool.check_deterministic("print(hash('text'))").deterministic


def test_pool_that_is_made_smaller_keeps_no_box_that_was_being_created(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    with SandboxPool(warm=1, max_live=4) as pool:
        make = pool._make_warm
        monkeypatch.setattr(pool, "_make_warm", lambda: make() if go.wait(60) else None)
        with pool.lease():  # starts to create another one
            pool.resize(0)
            go.set()
            assert settle(lambda: pool._refills, 0, within_s=60) == 0
            assert pool.ready == ()
