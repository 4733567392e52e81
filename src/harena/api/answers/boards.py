"""Boards as bytes that are ready to be sent. Promises: a board in the cache is not older than the last event of its
environment that the hub has seen, nor than `KEEP_S`; the same for every reader. Verified, self-reported and ladder
entries are never in one list.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from harena import schema
from harena.api.answers import views
from harena.api.http.metrics import Metrics
from harena.arena.arena import Arena
from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.models import PRIVATE_LABEL, BoardKind, NotFound, SubmissionKind
from harena.arena.db.queries import Queries
from harena.arena.db.records import BoardRecord, Filter, Sort
from harena.arena.db.seasons import SeasonRecord

KEEP_S = 2.0
"""What changes a board without an event, such as another process that freezes a season, is seen after this."""
MAX_KEPT = 500
MAX_ANSWERS = 100
"""Lists and exports in the cache; an export is kept up to `exports.MAX_CACHED` bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    env_id: str
    board: BoardKind | None = None
    """None: the one that the environment is about."""
    season_id: int | None = None
    where: Filter = field(default_factory=Filter)
    sort: Sort = Sort.SCORE_DESC
    limit: int = 50
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardPage:
    body: bytes
    etag: str
    env_id: str
    sort: str
    version: int
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer:
    body: bytes
    etag: str
    topics: tuple[str, ...]
    versions: tuple[int, ...]
    until: float


class Boards:
    def __init__(self, arena: Arena, queries: Queries, metrics: Metrics) -> None:
        self._arena = arena
        self._store = arena.store
        self._queries = queries
        self._metrics = metrics
        self._kept: OrderedDict[tuple[str, bytes], BoardPage] = OrderedDict()
        self._lock = threading.Lock()
        self._answers: OrderedDict[Hashable, CachedAnswer] = OrderedDict()
        self._made = 0
        """How often the cache was emptied: what was being read before that is not kept."""

    # ---- the cache ----

    def kept(self, path: str, query: bytes) -> BoardPage | None:
        """Costs no more than a look. By the query as it was sent."""
        page = self._kept.get((path, query))
        if page is None or page.version != self._version(page.env_id) or time.monotonic() > page.until:
            return None
        self._metrics.board_queries.labels(page.env_id, page.sort).inc()
        return page

    def keep(self, path: str, query: bytes, page: BoardPage) -> None:
        with self._lock:
            self._kept[path, query] = page
            self._kept.move_to_end((path, query))
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)

    def forget(self) -> None:
        """After a change that was made here, so that whoever made it sees it at once."""
        with self._lock:
            self._kept.clear()
            self._answers.clear()
            self._made += 1

    def answer(self, key: Hashable) -> CachedAnswer | None:
        """What was kept under the key, while none of its topics has had an event since, and for KEEP_S at most. For
        lists and exports, which are the same for every reader, as boards are."""
        found = self._answers.get(key)
        if found is None or time.monotonic() > found.until or found.versions != self.versions(found.topics):
            return None
        return found

    def versions(self, topics: Sequence[str]) -> tuple[int, ...]:
        """To be asked for before reading what is kept with them."""
        return (self._made, *(self._arena.hub.version(topic) for topic in topics))

    def keep_answer(self, key: Hashable, body: bytes, topics: Sequence[str], versions: tuple[int, ...]) -> CachedAnswer:
        made = CachedAnswer(
            body=body,
            etag=f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            topics=tuple(topics),
            versions=versions,
            until=time.monotonic() + KEEP_S,
        )
        with self._lock:
            self._answers[key] = made
            self._answers.move_to_end(key)
            if len(self._answers) > MAX_ANSWERS:
                self._answers.popitem(last=False)
        return made

    def page(self, ask: Ask, *, contract: bool = False) -> BoardPage:
        began = time.perf_counter()
        version = self._version(ask.env_id)
        board = self.read(ask)
        found: Any = board
        if contract:
            found = [views.contract_entry(entry, ask.env_id, board.board) for entry in board.entries]
        body = msgspec.json.encode(schema.as_json(found))
        shown = PRIVATE_LABEL if ask.env_id in self._store.guests.private() else ask.env_id
        self._metrics.board_queries.labels(shown, ask.sort.value).inc()
        self._metrics.board_duration.observe(time.perf_counter() - began)
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return BoardPage(
            body=body,
            etag=etag,
            env_id=ask.env_id,
            sort=ask.sort.value,
            version=version,
            until=time.monotonic() + KEEP_S,
        )

    def _version(self, env_id: str) -> int:
        return self._arena.hub.version(f"board:{env_id}")

    # ---- reading ----

    def read(self, ask: Ask) -> schema.Board:
        env = self._store.environments.get(ask.env_id)
        which = ask.board or BoardKind(views.default_board(env.kind))
        season = self._season(env, ask.season_id)
        live = season is None or season.ended_at is None
        if which is BoardKind.LADDER or not live:
            total, entries = self._standings(ask, which, season)
        else:
            total, entries = self._scores(ask, SubmissionKind(which.value))
        return schema.Board(
            env_id=env.env_id,
            board=which.value,
            season=season and self.season(season),
            total=total,
            live=live,
            entries=tuple(entries),
        )

    def season(self, of: SeasonRecord) -> schema.Season:
        return views.season(
            of,
            secret=self._store.seasons.secret(of.id),
            final_secret=self._store.seasons.final_secret(of.id),
            finals=self._store.finalists.progress(of.id),
        )

    def _season(self, env: EnvironmentRecord, season_id: int | None) -> SeasonRecord | None:
        if season_id is None:
            return self._store.seasons.live(env.env_id)
        season = self._store.seasons.get(season_id)
        if season.env_id != env.env_id:
            raise NotFound(f"season {season_id} is not one of {env.env_id}")
        return season

    def _scores(self, ask: Ask, kind: SubmissionKind) -> tuple[int, list[schema.BoardEntry]]:
        found, ranks, total = self._from_set(ask, kind) or self._from_tables(ask, kind)
        listed = self._queries.listed([entry.submission_id for entry in found])
        season = self._store.seasons.live(ask.env_id) if kind is SubmissionKind.VERIFIED else None
        tries: dict[str, int] = {}
        if season is not None:
            tries = self._store.draws.tries(season.id, {of.owner_id for of in listed.values()})
        entries = [
            views.score_entry(entry, rank, version=of.version, anonymous=of.anonymous, tries=tries.get(of.owner_id))
            for entry, rank in zip(found, ranks, strict=True)
            if (of := listed.get(entry.submission_id)) is not None
        ]
        return total, entries

    def _from_set(self, ask: Ask, kind: SubmissionKind) -> tuple[list[BoardRecord], list[int], int] | None:
        """A page of the whole board in its order, which the sorted set in Redis knows, with lines from the database."""
        ranked = self._arena.redis.boards if self._arena.redis is not None else None
        if ranked is None or ask.where != Filter() or ask.sort is not Sort.SCORE_DESC:
            return None
        part = ranked.page(ask.env_id, kind, offset=ask.offset, limit=ask.limit)
        if part is None:
            return None
        lines = self._store.boards.of(ask.env_id, kind, part.submission_ids)
        found: list[BoardRecord] = []
        for submission_id, score in zip(part.submission_ids, part.scores, strict=True):
            line = lines.get(submission_id)
            if line is None or line.score != score:
                ranked.differs(ask.env_id, kind, submission_id)
                return None
            found.append(line)
        return found, shared_ranks(part.scores, ask.offset, 1 + part.above), part.total

    def _from_tables(self, ask: Ask, kind: SubmissionKind) -> tuple[list[BoardRecord], list[int], int]:
        where = ask.where
        found = self._store.boards.top(
            ask.env_id, kind=kind, where=where, sort=ask.sort, limit=ask.limit, offset=ask.offset
        )
        ranks = self._ranks(ask, kind, [entry.score for entry in found])
        return found, ranks, self._queries.board_total(ask.env_id, kind, where)

    def _ranks(self, ask: Ask, kind: SubmissionKind, scores: Sequence[float]) -> list[int]:
        """Return the ranks of a page's entries on the whole board. Where nothing is left out between its entries,
        counting from its top is enough."""
        where = ask.where
        gapless = where.user is None and where.algorithm is None and where.dates == (None, None)
        if not scores:
            return []
        if not gapless or ask.sort is not Sort.SCORE_DESC:
            ranked = self._arena.redis.boards.ranks(ask.env_id, kind, scores) if self._arena.redis is not None else None
            if ranked is not None:
                return [1 + better for better in ranked.better]
            by_score = self._queries.board_ranks(ask.env_id, kind, scores)
            return [by_score[score] for score in scores]
        above = ask.offset
        if where.score_max is not None:
            above += self._queries.board_above(ask.env_id, kind, where.score_max)
        first = 1 + self._queries.board_above(ask.env_id, kind, scores[0]) if above else 1
        return shared_ranks(scores, above, first)

    def _standings(
        self, ask: Ask, which: BoardKind, season: SeasonRecord | None
    ) -> tuple[int, list[schema.BoardEntry]]:
        if season is None:
            return 0, []
        chosen: dict[str, Any] = {"board": which, "season_id": season.id, "where": ask.where}
        lines = self._arena.standings.standings(ask.env_id, **chosen, sort=ask.sort, limit=ask.limit, offset=ask.offset)
        ladder = which is BoardKind.LADDER
        sparks = self._arena.standings.spark([line.submission_id for line in lines]) if ladder else {}
        entries = [views.standing(line, sparks.get(line.submission_id, [])) for line in lines]
        return self._arena.standings.count(ask.env_id, **chosen), entries


def shared_ranks(scores: Sequence[float], above: int, first: int) -> list[int]:
    """Best first, with so many above them, of which some may share the first's rank: equal scores do."""
    ranks: list[int] = []
    for place, score in enumerate(scores):
        same = place and score == scores[place - 1]
        ranks.append(first if not place else ranks[-1] if same else above + place + 1)
    return ranks
