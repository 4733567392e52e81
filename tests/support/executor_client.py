"""What the executor's tests share: a client, agents, and a runner that plays when it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import pytest

from harena.match.executor import config, server
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.result import MatchResult, MatchSpec, MatchStatus, SeatResult, SeatStatus
from harena.match.run.protocol import MatchRunner

FIRST_FREE = b"""
print("loaded")
def act(observation):
    return list(observation).index(0)
"""
SLOW = b"import time\ndef act(observation):\n    time.sleep(60)\n"


class Client:
    def __init__(self, port: int, channel: grpc.Channel | None = None, metadata: Any = ()) -> None:
        self.channel = channel or grpc.insecure_channel(
            f"127.0.0.1:{port}", options=[("grpc.max_receive_message_length", 64 << 20)]
        )
        self._metadata = metadata

    def _unary(self, name: str, request: Any, answer: Any) -> Any:
        return self.channel.unary_unary(
            f"/executor.Executor/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )

    def run(self, request: pb.MatchRequest, timeout: float = 60) -> pb.MatchResponse:
        return self._unary("RunMatch", request, pb.MatchResponse)(request, timeout=timeout, metadata=self._metadata)

    def run_later(self, request: pb.MatchRequest, timeout: float = 60) -> grpc.Future:
        return self._unary("RunMatch", request, pb.MatchResponse).future(
            request, timeout=timeout, metadata=self._metadata
        )

    def watch(self, request: pb.WatchRequest, timeout: float = 60) -> Any:
        return self.channel.unary_stream(
            "/executor.Executor/WatchMatch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.MatchEvent.FromString,
        )(request, timeout=timeout, metadata=self._metadata)

    def cancel(self, match_id: str) -> bool:
        request = pb.CancelRequest(match_id=match_id)
        call = self._unary("CancelMatch", request, pb.CancelResponse)
        return call(request, timeout=60, metadata=self._metadata).cancelled

    def validate(self, **fields: Any) -> pb.ValidationResponse:
        request = pb.ValidationRequest(**fields)
        call = self._unary("ValidateAgent", request, pb.ValidationResponse)
        return call(request, timeout=60, metadata=self._metadata)

    def health(self) -> pb.HealthCheckResponse:
        request = pb.HealthCheckRequest()
        return self._unary("HealthCheck", request, pb.HealthCheckResponse)(request, timeout=60)

    def environments(self) -> dict[str, pb.Environment]:
        request = pb.ListEnvironmentsRequest()
        answer = self._unary("ListEnvironments", request, pb.ListEnvironmentsResponse)(request, timeout=60)
        return {found.id: found for found in answer.environments}

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()


def request(*codes: bytes, **fields: Any) -> pb.MatchRequest:
    agents = [pb.AgentData(agent_id=f"agent-{at}", code_zip=code) for at, code in enumerate(codes)]
    return pb.MatchRequest(**{"environment": "tictactoe", "agents": agents, **fields})


class FakeHandle:
    def __init__(self, runner: FakeRunner, spec: MatchSpec, on_event: Callable[[dict[str, Any]], object] | None):
        self.spec = spec
        self.on_event = on_event
        self.cancelled = threading.Event()
        self._runner = runner

    def cancel(self) -> None:
        self.cancelled.set()
        self._runner.bell()

    def results(self, timeout: float | None = None) -> list[MatchResult]:
        return [self.result(timeout)]

    def result(self, timeout: float | None = None) -> MatchResult:
        if not self._runner.wait(self, timeout):
            raise TimeoutError
        if self.cancelled.is_set():
            return result(self.spec, status=MatchStatus.CANCELLED)
        return self._runner.answer(self.spec)


class FakeRunner:
    """Games end when the test lets them."""

    def __init__(self) -> None:
        self.answer: Callable[[MatchSpec], MatchResult] = result
        self.submitted: list[FakeHandle] = []
        self._free = True
        self._condition = threading.Condition()

    def submit(
        self, spec: MatchSpec, on_event: Callable[[dict[str, Any]], object] | None = None, *, seeds: object = None
    ) -> FakeHandle:
        handle = FakeHandle(self, spec, on_event)
        with self._condition:
            self.submitted.append(handle)
            self._condition.notify_all()
        return handle

    def hold(self) -> None:
        self._free = False

    def release(self) -> None:
        self._free = True
        self.bell()

    def bell(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def wait(self, handle: FakeHandle, timeout: float | None) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: self._free or handle.cancelled.is_set(), timeout)

    def started(self, count: int = 1) -> FakeHandle:
        with self._condition:
            assert self._condition.wait_for(lambda: len(self.submitted) >= count, 30)
        return self.submitted[count - 1]


def result(
    spec: MatchSpec,
    *,
    status: MatchStatus = MatchStatus.FINISHED,
    scores: tuple[float, ...] | None = None,
    faults: dict[int, tuple[SeatStatus, str]] | None = None,
    logs: dict[int, str] | None = None,
    error: str = "",
) -> MatchResult:
    scores = scores or tuple(float(not seat) for seat in range(len(spec.agents)))
    best = [seat for seat, score in enumerate(scores) if score == max(scores)]
    seats = tuple(
        SeatResult(
            agent=code.name,
            status=(faults or {}).get(seat, (SeatStatus.OK, ""))[0],
            reason=(faults or {}).get(seat, (SeatStatus.OK, ""))[1],
            score=scores[seat],
            cpu_s=0.25,
            moves=3,
            start_s=0.5,
            log=(logs or {}).get(seat, ""),
        )
        for seat, code in enumerate(spec.agents)
    )
    winner = best[0] if len(best) == 1 and status is MatchStatus.FINISHED else None
    return MatchResult(
        match_id=spec.match_id,
        environment="tictactoe-v1",
        seed=spec.seed,
        status=status,
        winner=winner,
        reason="three in a row",
        steps=5,
        wall_s=0.1,
        seats=seats,
        error=error,
    )


def until(holds: Callable[[], bool], within_s: float = 30) -> bool:
    pause = threading.Event()
    return any(holds() or pause.wait(0.01) for _ in range(int(within_s * 100)))


def types(events: Iterator[pb.MatchEvent]) -> list[str]:
    return [event.type for event in events]


def serving(
    runner: MatchRunner, tmp_path: Path, text: str = "", door: server.Authenticator | None = None
) -> server.RunningServer:
    text = text or "executor: {port: 0, max_matches: 2}"
    settings = config.parse(f"{text}\nreplay: {{folder: {tmp_path / 'replays'}}}")
    return server.start(settings, runner=runner, door=door)


def refusal(call: Any, *args: Any, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **fields)
    error: Any = caught.value
    return error.code(), error.details()


def two(**fields: Any) -> pb.MatchRequest:
    return request(FIRST_FREE, FIRST_FREE, **fields)
