"""Boards as sorted sets: pages at any depth, sizes and ranks of a large board without counting its rows.

Guarantees: a set is at least as new as the last event of its board that this process has seen, or it is not used; it
holds ids and scores only, and every line that is shown is read from the database; what Redis returns passes a closed
schema. A set that is missing, behind by too much, damaged or of another history is rebuilt from the database in the
background, by one process at a time; meanwhile the database answers.

A set knows the number of the last event that it contains. It catches up when it is read: the events since then name the
entries that changed, and their current rows are written if nobody else has done so.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
import secrets
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harena.arena.db.database import log_failure
from harena.arena.db.events import EventNotice
from harena.arena.db.models import SubmissionKind
from harena.arena.db.records import MAX_PAGE, BoardRecord
from harena.arena.db.store import Store
from harena.arena.events.bus import Hub
from harena.arena.redis.link import RedisLink

SMALLEST = 1000
"""Entries; smaller boards are read from the database as quickly."""
MAX_ENTRIES = 5_000_000
KEEP_S = 86400
"""A set that nobody changes or rebuilds for this long is forgotten."""
BUILD_S = 600
"""Time for one process to rebuild a set; then another one may."""
LOOK_S = 5.0
"""How often a board without a set is considered again."""
DIFFERS_S = 2.0
BATCH = 2000
MEMBER = re.compile(rb"[0-9a-f]{48}")
_log = logging.getLogger("harena.redis")

# Sizes are checked before anything is returned: a value that somebody else wrote may be of any length.
READ = """
local state = redis.call('HMGET', KEYS[1], 'number', 'at', 'count')
if not state[1] or not state[2] or not state[3] then return {} end
for i = 1, 3 do if #state[i] > 32 then return redis.error_reply('damaged') end end
local count = redis.call('ZCARD', KEYS[2])
if count ~= tonumber(state[3]) or count ~= redis.call('HLEN', KEYS[3]) then return redis.error_reply('damaged') end
local limit = tonumber(ARGV[2])
local page, above = {}, 0
if limit > 0 then
    page = redis.call('ZRANGE', KEYS[2], ARGV[1], ARGV[1] + limit - 1, 'WITHSCORES')
    for i = 1, #page, 2 do if #page[i] ~= 48 then return redis.error_reply('damaged') end end
    if page[2] then above = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. page[2]) end
end
local better = {}
for i = 3, #ARGV do better[i - 2] = redis.call('ZCOUNT', KEYS[2], '-inf', '(' .. ARGV[i]) end
return {state[1], state[2], state[3], page, above, better}
"""
APPLY = """
if redis.call('HGET', KEYS[1], 'number') ~= ARGV[1] then return 0 end
if redis.call('HLEN', KEYS[3]) ~= redis.call('ZCARD', KEYS[2]) then return -1 end
for i = 5, #ARGV, 3 do
    local old = redis.call('HGET', KEYS[3], ARGV[i])
    if old then redis.call('ZREM', KEYS[2], old) end
    if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[3], ARGV[i])
    else
        redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 1])
        redis.call('ZADD', KEYS[2], ARGV[i + 2], ARGV[i + 1])
    end
end
local count = redis.call('ZCARD', KEYS[2])
if redis.call('HLEN', KEYS[3]) ~= count then return -1 end
redis.call('HSET', KEYS[1], 'number', ARGV[2], 'at', ARGV[3], 'count', count)
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], ARGV[4]) end
return 1
"""
PUT = """
if redis.call('GET', KEYS[6]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[6])
if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('RENAME', KEYS[4], KEYS[2]) end
if redis.call('EXISTS', KEYS[5]) == 1 then redis.call('RENAME', KEYS[5], KEYS[3]) end
redis.call('HSET', KEYS[1], 'number', ARGV[2], 'at', ARGV[3], 'count', redis.call('ZCARD', KEYS[2]))
for i = 1, 3 do redis.call('EXPIRE', KEYS[i], ARGV[4]) end
return 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedSlice:
    """Part of a board, in its order."""

    number: int
    """The last event that it contains."""
    total: int
    submission_ids: tuple[str, ...]
    scores: tuple[float, ...]
    above: int
    """Entries of the whole board with a higher score than the first one here."""
    better: tuple[int, ...]
    """For each score that was asked for, the entries of the whole board with a higher one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    at: float
    slice: RankedSlice


@dataclass(frozen=True, slots=True)
class _Board:
    env_id: str
    kind: SubmissionKind
    name: str

    @property
    def keys(self) -> list[str]:
        """The state; the set; and who has which member of it."""
        return [f"{self.name}:state", f"{self.name}:set", f"{self.name}:places"]

    @property
    def topic(self) -> str:
        return f"board:{self.env_id}"


class RankedBoards:
    def __init__(self, link: RedisLink, store: Store, hub: Hub, *, smallest: int = SMALLEST) -> None:
        self._link = link
        self._store = store
        self._hub = hub
        self._smallest = smallest
        self._read = link.script(READ)
        self._apply = link.script(APPLY)
        self._put = link.script(PUT)
        self._lock = threading.Lock()
        self._checked: set[str] = set()
        """Boards whose set is known to be of this database's history."""
        self._considered: dict[str, float] = {}
        self._differs: dict[str, float] = {}
        self._builders: set[threading.Thread] = set()
        self._ending = False

    def page(self, env_id: str, kind: SubmissionKind, *, offset: int, limit: int) -> RankedSlice | None:
        """Entries by score, best first. None: ask the database."""
        return self._current(env_id, kind, [str(offset), str(limit)])

    def ranks(self, env_id: str, kind: SubmissionKind, scores: Sequence[float]) -> RankedSlice | None:
        """How many have a higher score than each of these. None: ask the database."""
        return self._current(env_id, kind, ["0", "0", *(_key_of(score) for score in scores)])

    def differs(self, env_id: str, kind: SubmissionKind, submission_id: str) -> None:
        """Note that a line in the database is not as the set has it. That is so for a moment while an entry changes; if
        it stays so, the set is wrong and is rebuilt."""
        if len(self._differs) > MAX_PAGE:
            self._differs.clear()
        since = self._differs.setdefault(submission_id, time.monotonic())
        if time.monotonic() - since > DIFFERS_S:
            del self._differs[submission_id]
            self._consider(self._board(env_id, kind), now=True)

    def close(self) -> None:
        """Idempotent."""
        self._ending = True
        for builder in list(self._builders):
            builder.join()

    # ---- reading ----

    def _current(self, env_id: str, kind: SubmissionKind, ask: Sequence[str]) -> RankedSlice | None:
        if not self._link.usable:
            return None
        board = self._board(env_id, kind)
        wanted = self._hub.version(board.topic)
        state = self._state(board, ask)
        if state is None:
            return None
        if board.name not in self._checked or state.slice.number < wanted:
            if not self._catch_up(board, state):
                return None
            state = self._state(board, ask)
        return state.slice if state is not None and state.slice.number >= wanted else None

    def _board(self, env_id: str, kind: SubmissionKind) -> _Board:
        tag = "{" + self._link.digest("board", env_id, kind.value) + "}"  # keys of one board stay together in a cluster
        return _Board(env_id, kind, f"{self._link.prefix}:{tag}")

    def _state(self, board: _Board, ask: Sequence[str]) -> _State | None:
        found = self._read(board.keys, ask)
        if found is None:
            self._consider(board)  # Redis is away, or the set is damaged
            return None
        try:
            state = _parse(found, int(ask[1]), len(ask) - 2)
        except (ValueError, TypeError, OverflowError):
            _log.warning("the set of a board in Redis is not of our form and is rebuilt")
            self._consider(board)
            return None
        if state is None:
            self._consider(board)
        return state

    def _catch_up(self, board: _Board, state: _State) -> bool:
        """Whether the set may be used now."""
        events = self._store.events
        number = state.slice.number
        then = events.get(number)
        last = events.get(events.last())
        if then is None or then.created_at != state.at or last is None:
            self._consider(board, now=True)  # pruned, or of a database that has been replaced since
            return False
        self._checked.add(board.name)
        came = events.after(number, topic=board.topic, limit=MAX_PAGE)
        places = _places(came, board.kind)
        if places is None or len(came) == MAX_PAGE:
            self._consider(board, now=True)
            return False
        rows = {(row.owner, row.algorithm): row for row in self._store.boards.entries(board.env_id, board.kind, places)}
        args: list[Any] = [number, last.number, json.dumps(last.created_at), KEEP_S]
        for place in places:
            row = rows.get(place)
            args += [self._link.digest("place", *place), *(("", "0") if row is None else _member(row))]
        applied = self._apply(board.keys, args)
        if applied == -1:
            self._consider(board, now=True)
        return applied in (0, 1)  # 0: somebody else was quicker

    # ---- rebuilding ----

    def _consider(self, board: _Board, *, now: bool = False) -> None:
        """Have the set rebuilt in the background, if the board is large enough and it is not being done."""
        with self._lock:
            soon = time.monotonic() < self._considered.get(board.name, 0.0)
            if (soon and not now) or self._ending or any(one.name == board.name for one in self._builders):
                return
            if len(self._considered) > MAX_PAGE:
                self._considered.clear()
            self._considered[board.name] = time.monotonic() + LOOK_S
            builder = threading.Thread(target=self._build, args=(board,), name=board.name, daemon=True)
            self._builders.add(builder)
            builder.start()

    def _build(self, board: _Board) -> None:
        try:
            size = self._store.boards.size(board.env_id, kind=board.kind)
            if self._smallest <= size <= MAX_ENTRIES:
                self._rebuild(board)
        except Exception as error:
            log_failure(_log, "a board could not be put into Redis; will try again", error)
        finally:
            with self._lock:
                self._builders.discard(threading.current_thread())

    def _rebuild(self, board: _Board) -> None:
        token = secrets.token_hex(8)
        lock = f"{board.name}:lock"
        if not self._link.use(lambda client: client.set(lock, token, nx=True, ex=BUILD_S)):
            return
        new_set, new_places = f"{board.name}:{token}:set", f"{board.name}:{token}:places"
        last = self._store.events.get(self._store.events.last())  # before the rows, which are then at least as new
        try:
            if last is None or not self._fill(board, new_set, new_places):
                return
            keys = [*board.keys, new_set, new_places, lock]
            if self._put(keys, [token, last.number, json.dumps(last.created_at), KEEP_S]) == 1:
                self._checked.add(board.name)
        finally:
            self._link.use(lambda client: client.delete(new_set, new_places))
            self._link.use(lambda client: client.delete(lock) if client.get(lock) == token.encode() else 0)

    def _fill(self, board: _Board, new_set: str, new_places: str) -> bool:
        after: tuple[str, str] | None = None
        while not self._ending:
            rows, after = self._store.boards.part(board.env_id, board.kind, after=after, limit=BATCH)
            if not rows:
                return True
            if self._link.use(lambda client, rows=rows: self._add(client, new_set, new_places, rows)) is None:
                return False
        return False

    def _add(self, client: Any, new_set: str, new_places: str, rows: Sequence[BoardRecord]) -> bool:
        members = {(row.owner, row.algorithm): _member(row) for row in rows}
        pipe = client.pipeline(transaction=False)
        pipe.zadd(new_set, dict(members.values()))
        pipe.hset(new_places, mapping={self._link.digest("place", *place): made[0] for place, made in members.items()})
        pipe.expire(new_set, BUILD_S)
        pipe.expire(new_places, BUILD_S)
        pipe.execute()
        return True


def _key_of(score: float) -> str:
    """A set is in ascending order, and boards begin with the best."""
    return repr(-score)


def _member(row: BoardRecord) -> tuple[str, str]:
    """Equal scores are in the order of their members: by the time of submission, then by id, as on the board."""
    return struct.pack(">d", max(0.0, row.at)).hex() + row.submission_id, _key_of(row.score)


def _places(events: Sequence[EventNotice], kind: SubmissionKind) -> list[tuple[str, str]] | None:
    """Owners and algorithms that the events are about, of one kind; None: about the whole board."""
    found: dict[tuple[str, str], None] = {}
    for event in events:
        body = event.body
        if not isinstance(body.get("owner"), str) or not isinstance(body.get("algorithm"), str):
            return None
        if body.get("kind") == kind.value:
            found[body["owner"], body["algorithm"]] = None
    return list(found)


def _parse(found: Any, limit: int, asked: int) -> _State | None:
    """Closed schema of what `READ` returns. Raises ValueError, TypeError, OverflowError."""
    if found == []:
        return None
    number, at, count, page, above, better = found
    if len(page) > 2 * limit or len(page) % 2 or len(better) != asked:
        raise ValueError("of another length")
    members, scores = page[::2], [-float(score) for score in page[1::2]]
    if not all(MEMBER.fullmatch(member) for member in members) or not all(map(math.isfinite, scores)):
        raise ValueError("not an entry")
    if any(low > high for high, low in itertools.pairwise(scores)):
        raise ValueError("not in order")
    total, counts = int(count), [int(above), *map(int, better)]
    if not all(0 <= one <= total for one in counts) or len(members) > total:
        raise ValueError("more than there are")
    return _State(
        at=float(at),
        slice=RankedSlice(
            number=int(number),
            total=total,
            submission_ids=tuple(member[16:].decode() for member in members),
            scores=tuple(scores),
            above=counts[0],
            better=tuple(counts[1:]),
        ),
    )
