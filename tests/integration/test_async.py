"""The async twins, on real boxes: the same answers as the sync classes, many at once, and nothing left by a cancel."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harena import AsyncSandbox, AsyncSandboxPool, BoxClosed, BoxFileNotFound, Limits, Verdict
from harena.cli.host import live_boxes

SLEEP: dict[str, Callable[[AsyncSandbox], Awaitable[Any]]] = {
    "exec": lambda box: box.exec(["sleep", "20"]),
    "run": lambda box: box.run("import time; time.sleep(20)"),
    "call": lambda box: box.call("import time\ndef f(): time.sleep(20)", "f"),
}


def own_boxes() -> list[str]:
    return [box["id"] for box in live_boxes() if box["owner"] == os.getpid()]


def eventually(claim: Callable[[], bool], within_s: float = 60) -> bool:
    end = time.monotonic() + within_s
    while not claim() and time.monotonic() < end:
        time.sleep(0.01)
    return claim()


def test_it_does_what_the_sync_box_does(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            result = await box.exec(["sh", "-c", "echo $0 $X; cat; pwd"], stdin=b"in\n", env={"X": "x"}, cwd="/tmp")
            assert result.stdout == b"sh x\nin\n/tmp\n"
            await box.run("x = 40")
            assert (await box.run("print(x + 2)")).stdout == b"42\n"
            assert (await box.call("def f(a, b=0): return a + b", "f", [1], {"b": 2})).value == 3
            await box.write("notes/a.txt", "hi")
            snapshot = await box.snapshot()
            await box.remove("notes")
            with pytest.raises(BoxFileNotFound):
                await box.read("notes/a.txt")
            await box.restore(snapshot)
            assert await box.read("notes/a.txt") == b"hi"
            assert [entry.path for entry in await box.list(recursive=True)] == ["notes", "notes/a.txt"]
            assert len(await box.sha256("notes/a.txt")) == 64
            assert await box.download("notes", tmp_path / "out") == 1
            assert await box.upload(tmp_path / "out", "again") == 1
            assert await box.read("again/a.txt") == b"hi"
            await box.ping()
            assert box.alive
        assert box.closed
        with pytest.raises(BoxClosed):
            await box.exec(["true"])

    asyncio.run(scenario())


def test_a_fork_goes_its_own_way() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            await box.run("x = 40")
            left, right = await box.fork(2)
            async with left, right:
                assert (await left.run("x += 1; print(x)")).stdout == b"41\n"
                assert (await right.run("print(x)")).stdout == b"40\n"
                assert left.lineage == (box.id,)

    asyncio.run(scenario())


def test_a_box_is_made_when_it_is_entered_and_not_before() -> None:
    async def scenario() -> None:
        box = AsyncSandbox()
        assert not box.alive
        assert not box.closed
        with pytest.raises(BoxClosed, match="not made yet"):
            await box.exec(["true"])
        await box.close()
        made = await AsyncSandbox.create(limits=Limits(wall_s=5))
        assert (await made.exec(["true"])).ok
        await made.close()
        await made.close()

    asyncio.run(scenario())


def test_calls_run_side_by_side() -> None:
    async def scenario() -> float:
        async with AsyncSandbox() as box:
            start = time.monotonic()
            results = await asyncio.gather(*(box.exec(["sh", "-c", f"sleep 0.5; echo {n}"]) for n in range(20)))
            assert [result.stdout for result in results] == [b"%d\n" % n for n in range(20)]
            return time.monotonic() - start

    assert asyncio.run(scenario()) < 5


def test_the_loop_is_free_while_the_guest_runs() -> None:
    async def scenario() -> int:
        turns = 0
        async with AsyncSandbox() as box:
            call = asyncio.ensure_future(box.exec(["sleep", "0.3"]))
            while not call.done():
                await asyncio.sleep(0.01)
                turns += 1
        return turns

    assert asyncio.run(scenario()) > 5


@pytest.mark.parametrize("call", SLEEP)
def test_a_cancelled_call_ends_alone(call: str) -> None:
    """Neither the box nor what else runs in it ends with it."""

    async def scenario() -> None:
        async with AsyncSandbox() as box:
            await box.write("kept", b"1")
            if call != "run":
                await box.run("x = 1")
            other = asyncio.ensure_future(box.exec(["sh", "-c", "sleep 1; echo other"]))
            start = time.monotonic()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(SLEEP[call](box), 0.3)
            assert time.monotonic() - start < 15
            assert (await other).stdout == b"other\n"
            assert await box.read("kept") == b"1"
            assert (await box.run("print('x' in globals())")).stdout == (b"False\n" if call == "run" else b"True\n")
            left = "import os; print(sum(b'sleep' in open(f'/proc/{p}/cmdline', 'rb').read() for p in os.listdir('/proc') if p.isdigit()))"
            assert (await box.exec(["python3", "-c", left])).stdout.split() == [b"1"], "its own command line alone"

    asyncio.run(scenario())


def test_a_call_cancelled_in_the_queue_does_not_run() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            first = asyncio.ensure_future(box.run("import time; time.sleep(0.7); x = 1"))
            await asyncio.sleep(0.2)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(box.run("open('ran', 'w')"), 0.1)
            assert (await first).ok, "it waited for its turn, so nothing of it had to be ended"
            assert (await box.run("import os; print(x, os.path.exists('ran'))")).stdout == b"1 False\n"

    asyncio.run(scenario())


def test_a_second_cancel_does_not_interrupt_the_clean_up() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            task = asyncio.ensure_future(box.exec(["sleep", "20"]))
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await box.exec(["echo", "still"])).stdout == b"still\n"

    asyncio.run(scenario())


def test_a_call_that_is_about_to_end_keeps_its_box_when_cancelled() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            task = asyncio.ensure_future(box.exec(["true"]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await box.exec(["echo", "still"])).stdout == b"still\n"

    asyncio.run(scenario())


def test_what_was_being_made_when_cancelled_is_ended() -> None:
    before = set(own_boxes())  # of tests that ran earlier in this process and keep theirs

    async def scenario() -> None:
        pool = await AsyncSandboxPool.create(warm=0)
        for make in (AsyncSandbox.create, pool.lease):
            task = asyncio.ensure_future(make())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await pool.close()

    asyncio.run(scenario())
    assert eventually(lambda: set(own_boxes()) <= before)


def test_output_is_read_while_the_process_runs() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            script = "while read -r line; do echo got $line; echo note >&2; done"
            async with await box.start(["sh", "-c", script]) as process:
                for word in (b"a", b"b"):
                    await process.write(word + b"\n")
                    assert await process.stdout.read(timeout_s=5) == b"got " + word + b"\n"
                with pytest.raises(TimeoutError):
                    await process.stdout.read(timeout_s=0.05)
                result = await process.wait()
                assert (result.verdict, result.stdout, result.stderr) == (Verdict.OK, b"", b"note\nnote\n")

    asyncio.run(scenario())


def test_both_streams_can_be_iterated_at_once() -> None:
    async def collect(stream: Any) -> bytes:
        return b"".join([chunk async for chunk in stream])

    async def scenario() -> None:
        async with AsyncSandbox() as box:
            script = "for i in 1 2 3; do echo o$i; echo e$i >&2; sleep 0.05; done; exit 3"
            process = await box.start(["sh", "-c", script])
            out, err = await asyncio.gather(collect(process.stdout), collect(process.stderr))
            assert (out, err) == (b"o1\no2\no3\n", b"e1\ne2\ne3\n")
            assert (await process.wait()).exit_code == 3

    asyncio.run(scenario())


def test_a_wait_that_was_given_up_loses_nothing() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            process = await box.start(["sh", "-c", "echo early; sleep 0.4; echo late"])
            with pytest.raises(TimeoutError, match="it goes on"):
                await process.wait(timeout_s=0.2)
            assert (await process.wait()).stdout == b"early\nlate\n"
            assert (await process.wait()).stdout == b"early\nlate\n"

    asyncio.run(scenario())


def test_signals_and_kill_reach_the_process() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            process = await box.start(
                ["sh", "-c", "trap 'echo asked; exit 5' TERM; echo up; while :; do sleep 0.05; done"]
            )
            await process.stdout.read()
            await process.send_signal(15)
            result = await process.wait()
            assert (result.stdout, result.exit_code) == (b"asked\n", 5)
            process = await box.start(["sleep", "20"])
            await process.kill()
            assert (await process.wait()).verdict is Verdict.SIGNAL

    asyncio.run(scenario())


def test_a_terminal_has_the_size_it_was_given() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box, await box.start(["sh"], pty=True) as process:
            process.resize(30, 100)
            await process.write(b"stty size; exit\n")
            shown = b"".join([chunk async for chunk in process.stdout])
            assert b"30 100" in shown

    asyncio.run(scenario())


def test_closing_the_box_ends_whoever_reads_from_it() -> None:
    async def scenario() -> None:
        async with AsyncSandbox() as box:
            process = await box.start(["sleep", "20"])
            reader = asyncio.ensure_future(process.stdout.read())
            await asyncio.sleep(0.05)
        assert await asyncio.wait_for(reader, 5) == b""

    asyncio.run(scenario())


def test_a_pool_maps_and_reports_progress_in_the_loops_thread() -> None:
    async def scenario() -> None:
        seen: list[tuple[int, int]] = []
        threads: set[int] = set()

        def progress(done: int, total: int) -> None:
            seen.append((done, total))
            threads.add(threading.get_ident())

        async with AsyncSandboxPool(warm=2) as pool:
            results = await pool.map([f"print({n})" for n in range(30)], progress=progress)
            assert [result.stdout for result in results] == [b"%d\n" % n for n in range(30)]
            assert seen == [(n + 1, 30) for n in range(30)]
            assert threads == {threading.get_ident()}
            assert not (await pool.check_deterministic("print(hash('a'))")).deterministic
            assert (await pool.check_deterministic("print(1)", runs=2)).deterministic
            for lease in (pool.lease(ttl_s=60), await pool.lease(ttl_s=60), asyncio.create_task(pool.lease())):
                async with lease if not isinstance(lease, asyncio.Task) else await lease as box:
                    assert (await box.exec(["hostname"])).stdout == b"box\n"
                assert box.closed

    asyncio.run(scenario())


def test_a_cancelled_map_is_given_up() -> None:
    before = set(own_boxes())

    async def scenario() -> None:
        async with AsyncSandboxPool(warm=1) as pool:
            programs = ["import time; time.sleep(0.2)"] * 100
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(pool.map(programs, limits=Limits(wall_s=5)), 0.5)

    asyncio.run(scenario())
    assert eventually(lambda: set(own_boxes()) <= before)


def test_it_works_in_a_forked_child() -> None:
    asyncio.run(_echo())  # this process has its threads now; the child has none of them
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(_echo())
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


async def _echo() -> None:
    async with AsyncSandbox() as box:
        assert (await box.exec(["echo", "hi"])).stdout == b"hi\n"
