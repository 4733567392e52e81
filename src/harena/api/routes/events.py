"""/v1/events: what happens, as it happens."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from harena.api import visibility
from harena.api.answers.live import MAX_TOPICS, EventStream
from harena.api.answers.openapi import answers
from harena.api.auth import Principal, Reader
from harena.api.context import Api, ApiOf
from harena.api.http.errors import ApiError
from harena.arena.db.models import MAX_NAME, NotFound

router = APIRouter(prefix="/v1", tags=["live"])

TOPIC = re.compile(rf"queue|(submission|match|tournament):[0-9a-f]{{1,32}}|(board|matches):.{{1,{MAX_NAME}}}")
LAST = re.compile(r"[0-9]{1,18}", re.ASCII)


@router.get(
    "/events",
    responses=answers(text="Server-sent events; the data is {topic, kind, body}.", media=["text/event-stream"]),
    summary="A stream of events of some topics",
)
async def events(
    api: ApiOf,
    request: Request,
    who: Reader,
    topics: Annotated[
        str,
        Query(
            min_length=1,
            max_length=8000,
            description="With commas: queue, submission:ID, board:ENV_ID, matches:ENV_ID, match:ID, tournament:ID",
        ),
    ],
    last_event_id: Annotated[str | None, Header(description="Carries on after this event.")] = None,
) -> Response:
    chosen = list(dict.fromkeys(filter(None, (topic.strip() for topic in topics.split(",")))))
    if not 0 < len(chosen) <= MAX_TOPICS:
        raise ApiError(422, "invalid", f"from 1 to {MAX_TOPICS} topics", hint="ask for fewer")
    for topic in chosen:
        if not TOPIC.fullmatch(topic):
            raise ApiError(422, "invalid", f"no topic {topic[:80]!r}", hint="see /docs for the topics there are")
    after = int(last_event_id) if last_event_id and LAST.fullmatch(last_event_id) else None
    visible = functools.partial(_visible, api, who, chosen)
    return EventStream(api.live.events(chosen, request.scope["state"]["address"], after, visible))


def _visible(api: Api, who: Principal, topics: Collection[str]) -> Collection[str]:
    """The topics without those of environments that the caller may not know of. On these nothing ever happens, as on
    topics of things that do not exist."""
    hidden = visibility.hidden(api, who)
    return topics if not hidden else {topic for topic in topics if _environment(api, topic) not in hidden}


def _environment(api: Api, topic: str) -> str | None:
    """The environment that a topic is of."""
    kind, _, name = topic.partition(":")
    finders: dict[str, Callable[[str], Any]] = {
        "submission": api.store.submissions.get,
        "match": api.store.matches.get,
        "tournament": api.arena.tournaments.get,
    }
    if kind in ("board", "matches"):
        return name
    try:
        return finders[kind](name).env_id if kind in finders else None
    except NotFound:
        return None
