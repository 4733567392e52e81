"""AsyncArenaClient: the same verbs, awaited, against the same real arena."""

from __future__ import annotations

import asyncio
import contextlib
import inspect

import pytest

from harena.client import ArenaClient, ArenaError, AsyncArenaClient, BadAnswer, Unreachable, WaitTimeout
from harena.client.verbs import Verbs
from support.client_hostile import Server, answer, stream
from support.client_world import CARTPOLE, LEFT, TICTACTOE


def test_both_clients_have_the_same_verbs_with_the_same_arguments():
    verbs = [name for name in vars(Verbs) if not name.startswith("_")]
    assert len(verbs) > 40
    for name in (*verbs, "wait", "watch", "live", "export_stream", "close"):
        assert (
            inspect.signature(getattr(ArenaClient, name)).parameters
            == inspect.signature(getattr(AsyncArenaClient, name)).parameters
        )


def test_a_submission_is_followed_to_its_rank(served, write):
    async def main() -> None:
        async with AsyncArenaClient(served.url) as client:
            states: list[str] = []
            sent = await client.submit(write(LEFT), CARTPOLE, algorithm="async")
            found = await client.wait(sent.id, 60, on_change=lambda one: states.append(one.state))
            assert (found.state, states[-1]) == ("ranked", "ranked")
            board, environments = await asyncio.gather(client.leaderboard(CARTPOLE), client.environments())
            assert found.id in [entry.submission_id for entry in board.entries]
            assert TICTACTOE in [one.env_id for one in environments]
            pieces = [piece async for piece in client.export_stream("board", CARTPOLE)]
            assert b"".join(pieces) == await client.export("board", CARTPOLE)
            with pytest.raises(ArenaError) as caught:
                await client.status("0" * 32)
            assert caught.value.status == 404

    asyncio.run(main())


def test_news_and_frames_are_iterated(served, players):
    _, ids = players

    async def main() -> None:
        async with AsyncArenaClient(served.url, client_id="players-of-all-tests") as client:
            async with contextlib.aclosing(client.watch(f"matches:{TICTACTOE}")) as news:
                assert (await anext(news)).kind == "reset"
                (match,) = await client.challenge(ids[0], ids[1])
                assert (await asyncio.wait_for(anext(news), 30)).topic == f"matches:{TICTACTOE}"
            frames = [frame async for frame in client.live(match.id)]
            assert frames[-1].event == "finished"

    asyncio.run(main())


def test_a_cancelled_wait_ends_at_once(served):
    async def main() -> None:
        async with AsyncArenaClient(served.url) as client:
            sleepy = "import time\n" + LEFT.replace("return", "time.sleep(0.2)\n    return")
            sent = await client.submit(sleepy.encode(), CARTPOLE, algorithm="sleepy")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.wait(sent.id, 60), 0.3)
            with pytest.raises(WaitTimeout):
                await client.wait(sent.id, 0.1)
            await client.cancel(sent.id)

    asyncio.run(main())


def test_hostile_servers_are_withstood_as_well():
    first = stream('id: 7\ndata: {"topic": "queue", "kind": "a"}\n\n')
    away = answer(b"", status="307 Temporary Redirect", headers=("Location: http://127.0.0.1:1/health",))
    servers = [Server(lambda _, number: first), Server(lambda *_: away)]

    async def main() -> None:
        async with AsyncArenaClient(servers[0].url) as client, contextlib.aclosing(client.watch("queue")) as news:
            assert [(await anext(news)).id for _ in range(3)] == ["", "7", "7"]
        async with AsyncArenaClient(servers[1].url, key="hrn_1") as client:
            with pytest.raises(BadAnswer, match="another server"):
                await client.health()
        async with AsyncArenaClient("http://127.0.0.1:1") as client:
            with pytest.raises(Unreachable):
                await client.health()

    try:
        asyncio.run(main())
    finally:
        for server in servers:
            server.close()
    assert b"last-event-id: 7" in servers[0].requests[1].lower()


def test_the_ordinary_client_works_inside_a_running_loop(served):
    """As in a notebook."""

    async def main() -> None:
        with ArenaClient(served.url) as client:
            assert client.about().name
            assert b"".join(client.export_stream("board", CARTPOLE))

    asyncio.run(main())
