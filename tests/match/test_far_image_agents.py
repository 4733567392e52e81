"""Agents that are images, in boxes of a server: the games of local boxes, measured and paused there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harena.match.agent import image
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatStatus, VoidCause
from harena.match.run.play import Rack, play
from harena.testing.boxserver import BoxServer, box_server
from support.image_agents import SHELL_AGENT, ImageAgents, image_agents

pytestmark = [pytest.mark.services, pytest.mark.timeout(240)]

assert image_agents
CODE = AgentCode(name="code", files={"agent.py": b"def act(observation): return 0\n"})


@pytest.fixture(scope="module")
def server(images: ImageAgents, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxServer]:
    """It has the images of the caller's store, because it is on the same machine."""
    options = "--allow-image", "docker.io/library/*:*", "--allow-image", "localhost:1/*:*", "--allow-package", "numpy"
    with box_server(tmp_path_factory.mktemp("server"), *options) as started:
        yield started


@pytest.fixture
def far(server: BoxServer) -> Iterator[Rack]:
    with Rack(backend=server.url, token=server.token) as rack:
        yield rack


def match(*agents: AgentCode | str, rack: Rack, clock: Clock | None = None, **spec: Any) -> MatchResult:
    loaded = tuple(agent if isinstance(agent, AgentCode) else image.load_any(agent) for agent in agents)
    clock = clock or Clock(start_s=60, move_s=30, match_s=200)
    return play(MatchSpec(environment="rps", agents=loaded, seed=5, clock=clock, **spec), rack=rack)


@pytest.mark.parametrize("kind", ["shell", "python"])
def test_an_image_plays_the_same_game_on_a_server(images: ImageAgents, far: Rack, kind: str) -> None:
    agent = images.shell() if kind == "shell" else images.python()
    with Rack() as near:
        here, there = match(agent, CODE, rack=near), match(agent, CODE, rack=far)
    assert there.status is MatchStatus.FINISHED, there
    assert [seat.status for seat in there.seats] == [SeatStatus.OK] * 2, there
    assert there.fingerprint == here.fingerprint
    assert [seat.moves for seat in there.seats] == [seat.moves for seat in here.seats]
    assert all(seat.cpu_s > 0 for seat in there.seats)


def test_two_images_play_a_series_on_a_server(images: ImageAgents, far: Rack) -> None:
    agents = images.shell(), images.python()
    for _ in range(2):
        result = match(*agents, rack=far, keep=True)
        assert [seat.status for seat in result.seats] == [SeatStatus.OK] * 2, result


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (SHELL_AGENT.replace('echo \'{"action"', 'while :; do :; done; echo \'{"action"'), SeatStatus.TIMEOUT),
        ("#!/bin/sh\nexit 3\n", SeatStatus.CRASH),
        ("#!/bin/sh\necho nonsense\nsleep 100\n", SeatStatus.PROTOCOL),
    ],
    ids=["endless move", "crash", "nonsense"],
)
def test_an_image_that_fails_on_a_server_loses(images: ImageAgents, far: Rack, script: str, status: SeatStatus) -> None:
    result = match(images.shell(script), CODE, rack=far, clock=Clock(start_s=60, move_s=0.5, match_s=200))
    assert result.status is MatchStatus.FINISHED, result
    assert (result.seats[0].status, result.seats[1].status, result.winner) == (status, SeatStatus.OK, 1), result


def test_an_image_that_the_server_cannot_get_is_nobodys_fault(images: ImageAgents, far: Rack) -> None:
    missing = AgentCode(name="gone", files={}, command=("x",), image="localhost:1/gone@sha256:" + "0" * 64)
    result = match(missing, CODE, rack=far)
    assert (result.status, result.cause) == (MatchStatus.VOID, VoidCause.NO_BOX), result
