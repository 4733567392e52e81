"""The async twins of sessions and pools, locally and on a server."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from harena import AsyncSandboxSession, AsyncWarmPoolManager, SandboxSession, WarmPoolManager
from harena.sessions.errors import NotFound
from support.leaks import settle

Keywords = dict[str, Any]


def command(*words: str, **more: Any) -> dict[str, Any]:
    return {"name": words[0], "type": "Command", "command": list(words), **more}


@pytest.mark.parametrize(
    ("twin", "original"), [(AsyncSandboxSession, SandboxSession), (AsyncWarmPoolManager, WarmPoolManager)]
)
def test_twin_has_every_method_with_its_arguments(twin: type, original: type) -> None:
    for name, method in inspect.getmembers(original, inspect.isfunction):
        if not name.startswith("_"):
            ours = inspect.signature(getattr(twin, name)).parameters
            assert (name, list(ours)) == (name, list(inspect.signature(method).parameters))
    assert list(inspect.signature(twin).parameters) == list(inspect.signature(original).parameters)


def test_snippet_of_the_contract_awaited(where: Keywords) -> None:
    async def run() -> None:
        manager = AsyncWarmPoolManager(**where)
        await manager.create_warmpool("async-pool", replicas=1)
        await manager.wait_for_warmpool_ready("async-pool")
        assert (await manager.get_pool_status("async-pool"))["ready_idle"] == 1
        seen: list[str] = []
        pieces: list[str] = []
        async with AsyncSandboxSession(pool_ref="async-pool", **where) as session:
            session.register_callback(lambda record: seen.append(record["name"]))
            result = await session.execute(
                [command("echo", "hi"), command("true")], on_output=lambda piece: pieces.append(piece["data"])
            )
            assert (result["status"]["stdout"], seen, pieces) == ("hi\n", ["echo", "true"], ["hi\n"])
            await session.upload("a", b"1")
            name = await session.snapshot()
            await session.upload("a", b"2")
            async with await session.fork(name) as fork:
                assert await fork.download("a") == b"1"
            await session.restore(name)
            assert await session.download("a") == b"1"
            assert len(await session.history()) == 2
            async with await session.create_interactive_shell(["echo", "typed"]) as shell:
                assert b"typed" in (await shell.wait(60)).stdout
        await manager.delete_warmpool("async-pool")
        with pytest.raises(NotFound):
            await manager.get_warmpool("async-pool")

    asyncio.run(run())


def test_sessions_run_side_by_side(where: Keywords) -> None:
    async def run() -> None:
        async with AsyncSandboxSession(**where) as one, AsyncSandboxSession(**where) as other:
            wait = "until [ -e go ]; do sleep 0.02; done; echo went"
            waiting = asyncio.create_task(one.execute([command("sh", "-c", wait, timeout=60)]))
            assert (await other.execute([command("echo", "first")]))["status"]["stdout"] == "first\n"
            await one.upload("go", b"")
            assert (await waiting)["status"]["stdout"] == "went\n"

    asyncio.run(run())


def test_cancelled_execution_is_picked_up_by_its_id(where: Keywords) -> None:
    async def run() -> None:
        async with AsyncSandboxSession(**where) as session:
            steps = [
                command("sh", "-c", "echo x >> runs; until [ -e go ]; do sleep 0.02; done; wc -l < runs", timeout=60)
            ]
            waiting = asyncio.create_task(session.execute(steps, operation_id="op"))
            while True:
                try:
                    assert await session.download("runs") == b"x\n"
                    break
                except FileNotFoundError:
                    await asyncio.sleep(0.02)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await session.upload("go", b"")
            assert (await session.execute(steps, operation_id="op"))["status"]["stdout"] == "1\n"

    asyncio.run(run())


def test_session_whose_creation_was_cancelled_is_ended(where: Keywords) -> None:
    from harena.sessions.engines import engine

    def sessions() -> int:
        found = engine.find(where.get("server"), where.get("token"))
        return len(found._ask("GET", "/v1/sessions")["sessions"]) if where else found.service.session_count

    async def run() -> None:
        creating = asyncio.create_task(AsyncSandboxSession(**where).create_sandbox())
        await asyncio.sleep(0)
        creating.cancel()
        with pytest.raises(asyncio.CancelledError):
            await creating

    before = sessions()
    asyncio.run(run())
    assert settle(sessions, before, within_s=60) == before
