"""What broke in executors that others wrote before us; each failure is a test here."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

import pytest

from harena import Limits, Sandbox, SandboxPool, Verdict
from harena.backends.local import wire
from support import busy
from support.leaks import new_marker, settle, with_marker


@pytest.fixture(scope="module")
def pool() -> Iterator[SandboxPool]:
    with SandboxPool(warm=2) as pool:
        yield pool


BROKEN = (
    "import builtins\nbuiltins.len = lambda *_: 1 / 0\nbuiltins.print = builtins.open = builtins.isinstance = None\n"
)


@pytest.mark.parametrize("group", [None, 3])
def test_program_that_replaces_builtins_hangs_nobody(pool: SandboxPool, group: int | None) -> None:
    results = pool.map([BROKEN, "print(len('abc'))", "print(len('abcd'))"] * 3, group=group, limits=Limits(wall_s=5))
    assert [result.stdout for result in results] == [b"", b"3\n", b"4\n"] * 3
    assert len("abc") == 3


def test_replaced_builtins_do_not_hang_a_call_or_a_run() -> None:
    with Sandbox() as box:
        assert box.call("import builtins\nbuiltins.len = None\ndef f():\n    return [1]", "f").value == [1]
        assert box.call(f"{BROKEN}def f():\n    return 1", "f", limits=Limits(wall_s=5)).verdict is not Verdict.TIME
        box.run(BROKEN, limits=Limits(wall_s=5))
        assert box.call("def f():\n    return len('abc')", "f").value == 3


def test_patched_module_does_not_leak_to_the_next_program(pool: SandboxPool) -> None:
    programs = ["import math\nmath.sqrt = lambda x: 42", "import math\nprint(math.sqrt(9))"] * 10
    assert {result.stdout for result in pool.map(programs)[1::2]} == {b"3.0\n"}
    assert math.sqrt(9) == 3


def test_answer_is_never_evaluated_in_the_callers_process(pool: SandboxPool) -> None:
    answer = "__import__('os').environ.__setitem__('HARENA_PWNED', '1')"
    result = pool.map([f"print(eval({answer!r}))"])[0]
    assert result.ok
    with Sandbox() as box:
        assert box.call("def f(text):\n    return eval(text)", "f", [answer]).ok
    assert "HARENA_PWNED" not in os.environ


@pytest.mark.parametrize("group", [None, 2])
def test_long_output_is_rejected_and_not_cut_in_silence(pool: SandboxPool, group: int | None) -> None:
    limits = Limits(output_bytes=5000)
    fits, over = pool.map(["print('x' * 4999)", "print('x' * 5000)"], limits=limits, group=group)
    assert (fits.verdict, len(fits.stdout)) == (Verdict.OK, 5000)
    assert (over.verdict, len(over.stdout), over.exit_code) == (Verdict.OUTPUT, 5000, None)
    assert "output_bytes=5000" in over.detail


def test_long_answer_is_whole_or_rejected() -> None:
    source, numbers = "def f():\n    return list(range(200_000))", list(range(200_000))
    with Sandbox() as box:
        assert box.call(source, "f", limits=Limits(output_bytes=2_000_000)).value == numbers
        assert box.call(source, "f").verdict is Verdict.OUTPUT


@pytest.mark.parametrize(
    "source", ["print({'one', 'two', 'three', 'four', 'five'})", "print(id([]))", "print([object()])"]
)
def test_set_order_and_addresses_do_not_pass_for_deterministic(pool: SandboxPool, source: str) -> None:
    for _ in range(3):
        assert not pool.check_deterministic(source).deterministic


def test_children_do_not_outlive_a_timeout(pool: SandboxPool) -> None:
    marker = new_marker()
    source = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if not os.fork():\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        f"        os.execvp('sleep', ['sleep', '{marker}'])\n"
        "time.sleep(1000)\n"
    )
    assert pool.map([source], limits=Limits(wall_s=1))[0].verdict is Verdict.TIME
    assert settle(lambda: with_marker(marker), 0) == 0


def test_children_do_not_outlive_a_program_that_ends_well(pool: SandboxPool) -> None:
    marker = new_marker()
    source = f"import subprocess\nsubprocess.Popen(['setsid', 'sleep', '{marker}'])\nprint('done')"
    result = pool.map([source], limits=Limits(wall_s=30))[0]
    assert (result.verdict, result.stdout) == (Verdict.OK, b"done\n")
    assert settle(lambda: with_marker(marker), 0) == 0


@pytest.mark.serial
def test_infinite_loops_do_not_cost_their_timeouts_in_a_row(pool: SandboxPool) -> None:
    """26 infinite loops among 512 programs: at most a quarter of 26 timeouts."""
    programs = [f"print({number})" for number in range(512)]
    loops = set(range(0, 26 * 19, 19))
    for number in loops:
        programs[number] = "while True: pass"
    with busy.Span() as span:
        results = pool.map(programs, limits=Limits(wall_s=1))
    assert {number for number, result in enumerate(results) if result.verdict is Verdict.TIME} == loops
    assert all(result.stdout == b"%d\n" % number for number, result in enumerate(results) if number not in loops)
    assert span.took_s < span.limit(26 / 4)


@pytest.mark.timeout(120)
def test_a_box_that_waits_to_be_read_can_be_written_to() -> None:
    """Output that nobody waits for fills the socket; a long request behind it must not wait for ever."""
    limits = Limits(output_bytes=20_000_000)
    with Sandbox() as box:
        channel = box._box._init  # pyright: ignore[reportPrivateUsage]
        argv = ["head", "-c", "10000000", "/dev/zero"]
        spawn = box._box._command(argv, {}, "", limits, wire.Flag.CAPTURE)  # pyright: ignore[reportPrivateUsage]
        id = channel.post(wire.Op.SPAWN, spawn.encode(), room=spawn.room)
        assert box.exec(["wc", "-c"], stdin=bytes(5_000_000)).stdout.strip() == b"5000000"
        frame = channel.wait(id, 60)
        assert len(wire.parse_done(frame.body, frame.earlier).stdout) == 10_000_000
        channel.forget(id)
