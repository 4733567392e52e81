"""Implements the rpcs of proto/executor.proto with any Runner. Guarantees: a match ends with the call that owns it;
errors of a client are a status that names the field, errors of an agent are in the result, and errors of the platform
are STATUS_ERROR.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

import harena
from harena.errors import HarenaError
from harena.match import registry
from harena.match.agent import validate
from harena.match.executor import answers, orders
from harena.match.executor.config import ServerConfig
from harena.match.executor.fetch import Fetcher
from harena.match.executor.jobs.runner import JobRunner
from harena.match.executor.matches import SLACK_S, MatchCall, RunningMatches, archive_limits
from harena.match.executor.metrics import ExecutorMetrics
from harena.match.executor.orders import CALLER, CallRefused
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.executor.replays import ReplayStore
from harena.match.executor.turns import Turns
from harena.match.executor.watchers import Watcher
from harena.match.result import Clock, MatchResult, MatchSpec
from harena.match.run.protocol import MatchRunner

log = logging.getLogger("harena.executor")

NAME = "executor.Executor"
SPARE_BYTES = 1 << 16
"""Bytes of a message reserved for what gRPC adds."""

Context = grpc.ServicerContext


class MatchExecutor:
    def __init__(
        self, settings: ServerConfig, runner: MatchRunner | JobRunner, *, at_once: int, fetcher: Fetcher | None = None
    ) -> None:
        """`at_once`: matches played at a time; others wait for their turn."""
        self._settings = settings
        self._runner = runner
        self._fetcher = fetcher or Fetcher(settings.fetch)
        self._store = ReplayStore(settings.replay)
        self._environments = [*registry.infos(), *map(registry.info, settings.executor.environments)]
        self._watchers = threading.BoundedSemaphore(settings.executor.max_watchers)
        self.board = RunningMatches(settings.executor.max_matches)
        self.turns = Turns(at_once)
        self.metrics = ExecutorMetrics(self.board, self.turns)

    # ---- rpcs ----

    def run_match(self, request: pb.MatchRequest, context: Context) -> pb.MatchResponse:
        match = self._admit(request, context)
        try:
            return self._play(match)
        finally:
            self.board.remove(match)

    def watch_match(self, request: pb.WatchRequest, context: Context) -> Iterator[pb.MatchEvent]:
        if not self._watchers.acquire(blocking=False):
            limit = self._settings.executor.max_watchers
            raise CallRefused(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{limit} clients are watching, the limit (executor.max_watchers)"
            )
        try:
            what = request.WhichOneof("what")
            if what == "match":
                yield from self._watch_own(request.match, context)
            elif what == "match_id":
                yield from self._watch_other(request.match_id, context)
            else:
                raise orders.invalid("give match_id, of a running match, or match, to start one")
        finally:
            self._watchers.release()

    def cancel_match(self, request: pb.CancelRequest, context: Context) -> pb.CancelResponse:
        if not request.match_id:
            raise orders.invalid("match_id: missing")
        match = self.board.get(CALLER.get(), request.match_id)
        if match is not None:
            match.cancel("cancelled by CancelMatch")
        return pb.CancelResponse(cancelled=match is not None)

    def validate_agent(self, request: pb.ValidationRequest, context: Context) -> pb.ValidationResponse:
        environment = orders.environment_of(request.environment)
        if not request.code_zip:
            raise orders.invalid("code_zip: missing")
        settings = self._settings.validation
        rules = validate.HouseRules(
            forbidden=settings.forbidden_imports,
            extensions=settings.allowed_extensions,
            max_lines=settings.max_lines,
        )
        with self.board, self.turns.turn(CALLER.get(), 0, lambda: not context.is_active()) as playing:
            if not playing:
                raise CallRefused(grpc.StatusCode.CANCELLED, "the call was cancelled")
            try:
                found = validate.validate(
                    request.code_zip,
                    environment,
                    play=functools.partial(self._play_for_call, context),
                    clock=self._smoke_clock(),
                    limits=archive_limits(self._settings),
                    rules=rules,
                    memory_mb=self._settings.resource_limits.memory_limit,
                )
            except HarenaError as error:
                log.warning("validation of %r: %s", request.agent_id[: orders.MAX_ID], error)
                raise CallRefused(grpc.StatusCode.INTERNAL, f"the agent could not be checked: {error}") from error
        return pb.ValidationResponse(
            valid=found.valid,
            errors=[answers.text(line) for line in found.errors],
            warnings=[answers.text(line) for line in found.warnings],
        )

    def health_check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        return pb.HealthCheckResponse(
            healthy=not self.board.draining,
            version=harena.__version__,
            active_matches=len(self.board),
            max_matches=self.board.limit,
            waiting_matches=self.turns.waiting,
        )

    def list_environments(self, request: pb.ListEnvironmentsRequest, context: Context) -> pb.ListEnvironmentsResponse:
        return pb.ListEnvironmentsResponse(environments=[answers.environment(info) for info in self._environments])

    # ---- matches ----

    def _admit(self, request: pb.MatchRequest, context: Context, *, watchable: bool = False) -> MatchCall:
        order = orders.read(request, self._settings, self._fetcher, watchable=watchable)
        match = MatchCall(order, self._settings, caller=CALLER.get())
        self.board.add(match)
        if not context.add_callback(match.cancel):
            match.cancel()
        return match

    def _play(self, match: MatchCall) -> pb.MatchResponse:
        try:
            match.play(self._runner, self._fetcher, self._store, self.turns)
            answer = answers.response(match, (self._settings.executor.max_message_mb << 20) - SPARE_BYTES)
        except BaseException:
            match.close(None)
            raise
        match.close(answer)
        self.metrics.played(match)
        log.info(
            "match %r in %s: %s, %d games, %d steps, %.3f s%s",
            match.order.match_id,
            match.order.environment,
            match.status.value,
            len(match.games),
            answer.total_steps,
            match.wall_s,
            f": {match.error}" if match.error else "",
        )
        return answer

    def _watch_own(self, request: pb.MatchRequest, context: Context) -> Iterator[pb.MatchEvent]:
        match = self._admit(request, context, watchable=True)
        watcher = match.watch()

        def play() -> None:
            CALLER.set(match.caller)  # of this thread
            try:
                self._play(match)
            except Exception:
                log.exception("match %r failed", match.order.match_id)

        player = threading.Thread(target=play, name=f"match {match.order.match_id}", daemon=True)
        player.start()
        try:
            yield from _events(match, watcher)
        finally:
            match.cancel()
            player.join()
            self.board.remove(match)

    def _watch_other(self, match_id: str, context: Context) -> Iterator[pb.MatchEvent]:
        match = self.board.get(CALLER.get(), match_id)
        if match is None:
            raise CallRefused(grpc.StatusCode.NOT_FOUND, f"match_id: no match {match_id[: orders.MAX_ID]!r} is running")
        watcher = match.watch()
        if not context.add_callback(watcher.end):
            watcher.end()
        try:
            for message in _events(match, watcher):
                if message.HasField("result"):
                    message.result.CopyFrom(answers.for_spectators(message.result))
                yield message
        finally:
            match.unwatch(watcher)

    def _smoke_clock(self) -> Clock:
        limits = self._settings.resource_limits
        return dataclasses.replace(
            validate.SMOKE_CLOCK, start_s=limits.start_timeout_sec, move_s=limits.step_timeout_sec
        )

    def _play_for_call(self, context: Context, spec: MatchSpec) -> MatchResult:
        limits = self._settings.resource_limits
        spec = dataclasses.replace(spec, memory_mb=limits.memory_limit, processes=limits.processes)
        if isinstance(self._runner, JobRunner):
            run = self._runner.run_one(spec)
            if not context.add_callback(run.cancel):
                run.cancel()
            return run.result()
        handle = self._runner.submit(spec)
        if not context.add_callback(handle.cancel):
            handle.cancel()
        return handle.result(timeout=spec.clock.match_s + SLACK_S)


def _events(match: MatchCall, watcher: Watcher) -> Iterator[pb.MatchEvent]:
    for told in watcher:
        yield answers.event(match, told)
        if told.kind == "result":
            return
    raise CallRefused(grpc.StatusCode.INTERNAL, "the match ended without an answer; the executor's log says more")


# ---- as gRPC handlers ----


def handlers(service: MatchExecutor) -> grpc.GenericRpcHandler:
    unary = {
        "RunMatch": (service.run_match, pb.MatchRequest),
        "ValidateAgent": (service.validate_agent, pb.ValidationRequest),
        "HealthCheck": (service.health_check, pb.HealthCheckRequest),
        "CancelMatch": (service.cancel_match, pb.CancelRequest),
        "ListEnvironments": (service.list_environments, pb.ListEnvironmentsRequest),
    }
    methods: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(
            _guarded(method), request_deserializer=_reader(request), response_serializer=_to_bytes
        )
        for name, (method, request) in unary.items()
    }
    methods["WatchMatch"] = grpc.unary_stream_rpc_method_handler(
        _guarded_stream(service.watch_match),
        request_deserializer=_reader(pb.WatchRequest),
        response_serializer=_to_bytes,
    )
    return grpc.method_handlers_generic_handler(NAME, methods)


def _to_bytes(message: Any) -> bytes:
    return message.SerializeToString()


class _Unreadable:
    """Stands for a message that could not be read: gRPC itself would answer INTERNAL, as if the server had failed."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


def _reader(kind: Any) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return _Unreadable(kind.DESCRIPTOR.name)

    return read


def _check_readable(request: Any) -> None:
    if isinstance(request, _Unreadable):
        raise orders.invalid(f"the message is not a {request.kind} of proto/executor.proto")


def _guarded(method: Callable[..., Any]) -> Callable[[Any, Context], Any]:
    def call(request: Any, context: Context) -> Any:
        try:
            _check_readable(request)
            return method(request, context)
        except Exception as error:
            _abort(context, error)

    return call


def _guarded_stream(method: Callable[..., Iterator[Any]]) -> Callable[[Any, Context], Iterator[Any]]:
    def call(request: Any, context: Context) -> Iterator[Any]:
        try:
            _check_readable(request)
            yield from method(request, context)
        except Exception as error:
            _abort(context, error)

    return call


def _abort(context: Context, error: Exception) -> NoReturn:
    if isinstance(error, CallRefused):
        context.abort(error.code, answers.text(str(error)))
    log.exception("a call failed", exc_info=error)
    context.abort(grpc.StatusCode.INTERNAL, "the executor failed; its log says more")
