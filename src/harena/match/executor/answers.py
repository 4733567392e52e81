"""Converts results to messages for clients. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harena.match.executor.matches import GameRecord, MatchCall
from harena.match.executor.pb import executor_pb2 as pb
from harena.match.executor.watchers import Told
from harena.match.game import GameInfo
from harena.match.result import MatchStatus

TAIL = 4096
STATUSES = {
    MatchStatus.FINISHED: pb.STATUS_SUCCESS,
    MatchStatus.TIMEOUT: pb.STATUS_TIMEOUT,
    MatchStatus.VOID: pb.STATUS_ERROR,
    MatchStatus.CANCELLED: pb.STATUS_CANCELLED,
}


def response(match: MatchCall, max_bytes: int) -> pb.MatchResponse:
    order, finished = match.order, match.status is MatchStatus.FINISHED
    first = match.games[0] if match.games else None
    answer = pb.MatchResponse(
        match_id=order.match_id,
        status=STATUSES[match.status],
        winner_agent_id=_winner(match) if finished else "",
        agent_results=[_agent(match, agent) for agent in range(len(order.entrants))],
        error_message="" if finished else text(match.error or match.status.value),
        total_steps=sum(game.result.steps for game in match.games),
        execution_time_sec=match.wall_s,
        seed=order.seed,
        reason=text(match.games[0].result.reason) if len(match.games) == 1 else "",
        environment=order.environment,
        games=[game_result(match, game) for game in match.games],
        warnings=[text(warning) for warning in match.warnings],
        void_cause=match.cause.value if match.cause else "",
        distinct_games=len({(game.pairing.seats, game.result.fingerprint or game.number) for game in match.games}),
    )
    if first is not None:
        answer.replay_url, answer.replay_html_url = first.urls
    if order.include_replay and not match.replay:
        answer.warnings.append("no replay: no game was played to record one")
    elif len(match.replay) + answer.ByteSize() > max_bytes:
        answer.warnings.append(
            f"the replay of {len(match.replay)} bytes is left out: answers have at most {max_bytes} bytes "
            "(executor.max_message_mb); ask for record_replay"
        )
    else:
        answer.replay = match.replay
    return answer


def for_spectators(answer: pb.MatchResponse) -> pb.MatchResponse:
    """Remove logs and replay, which are only for the agent's owner and the client that requested the match."""
    public = pb.MatchResponse()
    public.CopyFrom(answer)
    public.ClearField("replay")
    for agent in public.agent_results:
        agent.ClearField("log")
        agent.ClearField("log_tail")
    return public


def _agent(match: MatchCall, agent: int) -> pb.AgentResult:
    played = [(game, game.pairing.seats.index(agent)) for game in match.games]
    seats = [game.result.seats[seat] for game, seat in played]
    fault = match.faults.get(agent)
    log = text(match.logs.get(agent, ""))
    return pb.AgentResult(
        agent_id=match.order.entrants[agent].agent_id,
        score=sum(seat.score for seat in seats),
        errors=sum(seat.status.value != "ok" for seat in seats),
        error_message=text(fault.reason) if fault else "",
        status=fault.status.value if fault else "ok",
        cpu_sec=sum(seat.cpu_s for seat in seats),
        log_tail=log.encode()[-TAIL:].decode(errors="ignore"),
        log=log if match.order.include_logs else "",
        moves=sum(seat.moves for seat in seats),
        start_sec=max((seat.start_s for seat in seats), default=0.0),
    )


def _winner(match: MatchCall) -> str:
    """Return the winner that a single game names, or the highest total score of a series."""
    if len(match.games) == 1:
        game = match.games[0]
        return _name(match, game, game.result.winner)
    totals = [
        sum(game.result.seats[game.pairing.seats.index(agent)].score for game in match.games)
        for agent in range(len(match.order.entrants))
    ]
    best = [agent for agent, total in enumerate(totals) if total == max(totals)]
    return match.order.entrants[best[0]].agent_id if len(best) == 1 else ""


def _name(match: MatchCall, game: GameRecord, seat: int | None) -> str:
    return "" if seat is None else match.order.entrants[game.pairing.seats[seat]].agent_id


def game_result(match: MatchCall, game: GameRecord) -> pb.GameResult:
    result = game.result
    return pb.GameResult(
        game=game.number,
        seed=game.pairing.seed,
        status=STATUSES[result.status],
        winner_agent_id=_name(match, game, result.winner),
        reason=text(result.reason),
        total_steps=result.steps,
        execution_time_sec=result.wall_s,
        seats=[
            pb.SeatResult(
                agent_id=_name(match, game, number),
                score=seat.score,
                status=seat.status.value,
                reason=text(seat.reason),
                moves=seat.moves,
                cpu_sec=seat.cpu_s,
            )
            for number, seat in enumerate(result.seats)
        ],
        replay_url=game.urls[0],
        replay_html_url=game.urls[1],
        void_cause=result.cause.value if result.cause else "",
    )


def event(match: MatchCall, told: Told) -> pb.MatchEvent:
    message = pb.MatchEvent(match_id=match.order.match_id, type=told.kind, game=told.game, skipped=told.skipped)
    if told.kind == "result":
        message.result.CopyFrom(told.data)
        return message
    seats = match.pairings[told.game].seats
    message.seats.extend(match.order.entrants[agent].agent_id for agent in seats)
    if told.kind == "finished":
        message.game_result.CopyFrom(game_result(match, told.data))
    elif told.kind == "step":
        _fill_step(message, told.data)
    return message


def _fill_step(message: pb.MatchEvent, data: Mapping[str, Any]) -> None:
    message.step = data["step"]
    for seat, action in data.get("actions", {}).items():
        message.actions[int(seat)] = json.dumps(action)
    for seat, reward in data.get("rewards", {}).items():
        message.rewards[int(seat)] = reward
    if "view" in data:
        message.view = json.dumps(data["view"])
    message.text = text(data.get("text", ""))
    for clock in data.get("clocks", ()):
        message.clocks.add(cpu_sec=clock["cpu_s"], bank_sec=clock["bank_s"], moves=clock["moves"])


def environment(info: GameInfo) -> pb.Environment:
    return pb.Environment(
        id=info.id,
        seats=info.seats,
        simultaneous=info.simultaneous,
        hidden=info.hidden,
        summary=info.summary,
        observation=json.dumps(info.observation),
        action=json.dumps(info.action),
    )


def text(value: str) -> str:
    """Replace lone surrogates, which agents may print and protobuf refuses."""
    return value.encode(errors="replace").decode()
