"""Trajectories, rewards, usage and statistics over HTTP. Every owner reads its own, and nobody else's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from harena.errors import HarenaError, SpecError
from harena.journal import trajectory
from harena.journal.writer import read_key
from harena.ledger.budget import NAMES, Counts, as_label, parse_budget
from harena.ledger.ledger import GROUPS, Ledger
from harena.sandbox import backend
from harena.sandbox.border.accounting import AccountedBackend
from harena.serve.routes import models
from harena.serve.routes.context import LINES, Context, answer, owner_of, path_options
from harena.sessions.errors import error_out
from harena.sessions.records import Records
from harena.sessions.service import Service, session_view

if TYPE_CHECKING:
    from harena.serve.server import ServeOptions

MAX_ROWS = 10_000
RUN, AGENT = b"x-harena-run", b"x-harena-agent"
"""Headers in which a client names the labels of the boxes of its connection."""


router = APIRouter(prefix="/v1", tags=["records"])


class Reward(models.Body):
    reward: float | None = Field(allow_inf_nan=False)
    done: bool = False
    seq: int | None = Field(None, ge=1, description="Number of the action in the journal; null: the latest step.")


class TrajectoryStep(models.Answer):
    """One line of a trajectory: an action of the session, in the order of their ends."""

    step: int
    seq: int
    at: str
    journal: str
    labels: dict[str, str]
    action: dict[str, Any]
    observation: dict[str, Any] | None
    reward: float | None
    done: bool
    usage: dict[str, float] | None
    fault: dict[str, str] | None
    mask: bool


class UsageAnswer(models.Answer):
    """What the owner used, and its budget."""

    owner: str
    usage: list[dict[str, float | str]]
    budget: dict[str, float | str | None] | None


class StatsAnswer(models.Answer):
    """Sessions, pools, verdicts, latencies and usage of the owner."""

    owner: str
    sessions: list[models.SessionAnswer]
    pools: list[models.PoolAnswer]
    boxes: int
    verdicts: dict[str, int]
    latency_ms: dict[str, float]
    usage: dict[str, float]
    budget: dict[str, float | str | None] | None


def open_records(options: ServeOptions) -> Records:
    """Open what the options of the server name."""
    budgets = dict(map(parse_budget, options.budgets))
    key = None if options.journal_key is None else read_key(options.journal_key)
    ledger = Ledger(options.usage, budgets=budgets)
    return Records(ledger, journals=options.journal, key=key, max_bytes=options.journal_mb << 20)


def accounted(records: Records, owner: str, headers: Mapping[bytes, bytes], boxes: str) -> backend.Backend:
    """The backend of this name, with its boxes charged to the owner."""
    made = backend.load(boxes, None)
    if records.ledger is None:
        return made
    run, agent = (as_label(headers.get(name, b"").decode("latin-1")) for name in (RUN, AGENT))
    return AccountedBackend(made, records.ledger.account(owner, run=run, agent=agent))


def usage_metrics(records: Records, owner: str) -> list[str]:
    """Usage and verdicts of one owner, for Prometheus. Its name has letters, digits, dots and hyphens only."""
    if records.ledger is None:
        return []
    used = Counts(**{name: row[name] for row in records.ledger.usage(owner=owner, by=()) for name in NAMES})
    lines = [
        f'# TYPE harena_usage_{name}_total counter\nharena_usage_{name}_total{{owner="{owner}"}} {value}\n'
        for name, value in used.as_json().items()
    ]
    stats = records.ledger.stats(owner)
    if stats["verdicts"]:
        lines.append("# TYPE harena_verdicts_total counter\n")
    for verdict, count in stats["verdicts"].items():
        lines.append(f'harena_verdicts_total{{owner="{owner}",verdict="{verdict}"}} {count}\n')
    return lines


@router.get("/sessions/{session_id}/trajectory", **path_options("getTrajectory", None, lines=TrajectoryStep))
async def get_trajectory(request: Request, session_id: str) -> Response:
    """Return every action as JSON lines, also of a session that has ended."""
    context = Context.of(request)
    records = context.service.records
    path = await context.run(request, lambda: records.journal(owner_of(request), session_id))
    return StreamingResponse(_whole_lines(trajectory.lines(path)), media_type=LINES)


@router.post("/sessions/{session_id}/reward", **path_options("giveReward", models.Empty))
async def give_reward(request: Request, session_id: str, body: Reward) -> Response:
    """Record the reward of the latest step, or of another action."""
    context = Context.of(request)
    session = context.session(request, session_id)
    await context.run(request, lambda: session.reward(body.reward, done=body.done, seq=body.seq))
    return answer({})


@router.get("/usage", **path_options("getUsage", UsageAnswer))
async def get_usage(
    request: Request,
    by: Annotated[str, Query(max_length=40, description="day, run and agent, with commas")] = "run,agent",
    since: Annotated[str, Query(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = "",
) -> Response:
    """Return what the owner used."""
    context, owner = Context.of(request), owner_of(request)
    return answer(await context.run(request, lambda: _usage(context.service.records.ledger, owner, by, since)))


@router.get("/stats", **path_options("getStats", StatsAnswer))
async def get_stats(request: Request) -> Response:
    """Return what `harena top` shows."""
    context, owner = Context.of(request), owner_of(request)
    return answer(await context.run(request, lambda: _stats(context.service, owner)))


def _usage(ledger: Ledger | None, owner: str, by: str, since: str) -> dict[str, Any]:
    groups = tuple(name for name in by.split(",") if name)
    if not set(groups) <= set(GROUPS) - {"owner"}:
        raise SpecError("by: day, run and agent, with commas")
    assert ledger is not None
    budget = ledger.budget(owner)
    rows = ledger.usage(owner=owner, since=since, by=groups, limit=MAX_ROWS)
    return {"owner": owner, "usage": rows, "budget": None if budget is None else budget.as_json()}


def _stats(service: Service, owner: str) -> dict[str, Any]:
    ledger = service.records.ledger
    assert ledger is not None
    found = _usage(ledger, owner, "", "")
    return {
        "owner": owner,
        "sessions": [session_view(session) for session in service.sessions(owner)[:1000]],
        "pools": service.pools(owner)[:1000],
        "boxes": service.boxes_held(owner),
        **ledger.stats(owner),
        "usage": found["usage"][0] if found["usage"] else Counts().as_json(),
        "budget": found["budget"],
    }


def _whole_lines(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Journals are read while they are sent: a broken one ends the answer with a line that says so."""
    try:
        yield from lines
    except HarenaError as error:
        yield json.dumps({"error": error_out(error)}).encode() + b"\n"
