"""What the arena remembers: its tables, and the life of a submission as one pure function.

Guarantees: a submission changes state only along `transition`; matches, ratings, evaluations and events are only ever
added to; text and JSON from users are capped and checked before they reach a database. Times are seconds since 1970,
ids are uuid4 in hex, files are named by their sha256. Does not talk to a database: `store` and `jobs` do.
One file, however long: tables refer to each other, and a migration is read against all of them.

StoreError
├── NotFound             no such row
├── Conflict             somebody else changed it first, or the name is taken: read again
├── IllegalTransition    the submission's state does not allow that
├── QuotaExceeded        the owner has used up what the host allows; says when to come back
├── Busy                 so much waits already that no more is taken: come back later
├── KeyRefused           no such key, or expired, revoked, or without the scope
│   └── ScopeMissing     a live key without the scope
├── StorageFull          no space is left on the disk
├── ReadOnly             the database or the disk takes no changes; reading works
└── LeaseLost            the job was cancelled, taken over or finished: drop its result
"""

from __future__ import annotations

import enum
import hashlib
import json
import re
import unicodedata
from typing import Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from harena.errors import HarenaError, SpecError

SCHEMA_VERSION = 8

MAX_NAME = 200
"""Owners, algorithms, environments, file names: longer ones are refused."""
MAX_REASON = 4000
"""A reason is cut to this: it may quote what a box printed."""
MAX_JSON = 1 << 20

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


class StoreError(HarenaError):
    """The database's answer was no."""


class StorageFull(StoreError):
    """No space is left on the disk of the database or the files: free some, then try again."""


class ReadOnly(StoreError):
    """The database or the disk is read-only: make it writable, then try again. Nothing was written."""


class NotFound(StoreError):
    pass


class Conflict(StoreError):
    pass


class IllegalTransition(StoreError):
    pass


class QuotaExceeded(StoreError):
    pass


class Busy(StoreError):
    pass


class KeyRefused(StoreError):
    """One sentence for all causes but a missing scope, so that nobody learns which keys exist."""


class ScopeMissing(KeyRefused):
    """The key is live, but has not the scope that was asked for."""


class LeaseLost(StoreError):
    pass


# ---- the life of a submission ----


class State(enum.StrEnum):
    RECEIVED = "received"
    CHECKED = "checked"
    QUEUED = "queued"
    RUNNING = "running"
    RANKED = "ranked"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Event(enum.StrEnum):
    CHECK = "check"
    QUEUE = "queue"
    START = "start"
    RELEASE = "release"
    """The worker is gone; another one will start it again."""
    RANK = "rank"
    REJECT = "reject"
    FAIL = "fail"
    CANCEL = "cancel"
    REEVALUATE = "reevaluate"


ACTIVE = frozenset({State.RECEIVED, State.CHECKED, State.QUEUED, State.RUNNING})
"""These count against the quota of submissions at once."""

_S, _E = State, Event
TRANSITIONS = {
    (_S.RECEIVED, _E.CHECK): _S.CHECKED,
    (_S.RECEIVED, _E.REJECT): _S.REJECTED,
    (_S.RECEIVED, _E.FAIL): _S.FAILED,
    (_S.RECEIVED, _E.CANCEL): _S.CANCELLED,
    (_S.CHECKED, _E.QUEUE): _S.QUEUED,
    (_S.CHECKED, _E.REJECT): _S.REJECTED,
    (_S.CHECKED, _E.FAIL): _S.FAILED,
    (_S.CHECKED, _E.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _E.START): _S.RUNNING,
    (_S.QUEUED, _E.FAIL): _S.FAILED,
    (_S.QUEUED, _E.CANCEL): _S.CANCELLED,
    (_S.RUNNING, _E.RELEASE): _S.QUEUED,
    (_S.RUNNING, _E.RANK): _S.RANKED,
    (_S.RUNNING, _E.REJECT): _S.REJECTED,
    (_S.RUNNING, _E.FAIL): _S.FAILED,
    (_S.RUNNING, _E.CANCEL): _S.CANCELLED,
    (_S.RANKED, _E.REEVALUATE): _S.QUEUED,
    (_S.FAILED, _E.REEVALUATE): _S.RECEIVED,  # it may have failed before it was checked
    (_S.CANCELLED, _E.REEVALUATE): _S.RECEIVED,
}


def transition(state: State, event: Event) -> State:
    """The state after the event. What the table does not list is refused."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        allowed = ", ".join(known for at, known in TRANSITIONS if at is state) or "nothing, it is final"
        raise IllegalTransition(f"a {state} submission cannot {event}; allowed: {allowed}")
    return after


class SubmissionKind(enum.StrEnum):
    """How a submission is evaluated. The two kinds never share a board."""

    VERIFIED = "verified"
    SELF_REPORTED = "self-reported"


class EnvironmentKind(enum.StrEnum):
    VERIFIED = "verified"
    LADDER = "ladder"
    SCRIPT_ONLY = "script-only"


class Access(enum.StrEnum):
    """Who may see an environment with everything in it, and who may submit to it."""

    PUBLIC = "public"
    INVITED = "invited"
    """Everybody sees it, guests submit."""
    PRIVATE = "private"
    """Only guests and hosts learn that it exists."""


PRIVATE_LABEL = "private"
"""Stands for the id of every private environment in metrics."""


class HookKind(enum.StrEnum):
    """How an owner is told of results and changes of rank."""

    WEBHOOK = "webhook"
    MAIL = "mail"


class Scope(enum.StrEnum):
    READ = "read"
    SUBMIT = "submit"
    HOST = "host"
    WORKER = "worker"
    """Claims jobs over HTTP, and sees and ends those that it holds; nothing else."""
    ADMIN = "admin"
    """Implies the others."""


class MatchState(enum.StrEnum):
    """The last four as in harena.match.result.MatchStatus."""

    SCHEDULED = "scheduled"
    FINISHED = "finished"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    VOID = "void"


class MatchKind(enum.StrEnum):
    LADDER = "ladder"
    """Rated."""
    CHALLENGE = "challenge"
    TOURNAMENT = "tournament"
    """Finals of a season too."""


class BoardKind(enum.StrEnum):
    """What a line of a board rests on. The three never mix."""

    VERIFIED = "verified"
    SELF_REPORTED = "self-reported"
    LADDER = "ladder"


class TournamentState(enum.StrEnum):
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class FinalState(enum.StrEnum):
    """How far a finalist's second evaluation is."""

    CHOSEN = "chosen"
    """The owner chose it; the finals have not begun."""
    QUEUED = "queued"
    DONE = "done"
    FAILED = "failed"
    """It failed by the agent's own fault."""
    VOID = "void"
    """The platform gave up: start the finals again."""


class JobState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    DEAD = "dead"
    """Out of attempts, or not worth another: somebody has to look."""
    CANCELLED = "cancelled"


# ---- what users send ----


def name_text(value: str, what: str, *, max_chars: int = MAX_NAME) -> str:
    """A short text, unchanged. Refuses what one of the databases could not give back, and what a reader could not see
    or would see in the wrong place: control and format characters (direction marks among them), letters that are blank,
    piles of accents."""
    if not isinstance(value, str) or not 0 < len(value) <= max_chars:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError(f"{what} is a text of 1 to {max_chars} characters")
    if not _storable(value):
        raise SpecError(f"{what} has characters that are not valid Unicode text")
    hidden = unseen(value)
    if hidden is not None:
        raise SpecError(f"{what} has U+{ord(hidden):04X}, which cannot be seen or moves other text: leave it out")
    return value


_BLANK = frozenset(map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0)))
"""Characters that count as letters or marks and show nothing."""
MAX_ACCENTS = 3
"""On one letter; no language that is written with them needs more."""


def unseen(text: str, *, lines: bool = False) -> str | None:
    """The first character that no honest name needs: it is invisible, or it changes how others look. `lines`: of a
    longer text, which has line breaks."""
    accents = 0
    for char in text:
        accents = accents + 1 if unicodedata.category(char) in ("Mn", "Me") else 0
        selector = 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF
        shown = char.isprintable() or (lines and char in "\n\r\t")
        if not shown or char in _BLANK or selector or accents > MAX_ACCENTS:
            return char
    return None


# ---- owners without keys ----

_MARK = re.compile(r"#[0-9a-f]{8}$", re.ASCII)


def marked(name: str, client_id: str) -> str:
    """The owner of what was sent without a key by this client: two strangers who type one name are two owners. The mark
    tells them apart and does not tell the client's id."""
    digest = hashlib.sha256(f"harena mark {client_id}".encode("utf-8", "replace")).hexdigest()
    return f"{name[: MAX_NAME - 9]}#{digest[:8]}"


def unmarked(owner: str) -> str:
    """The name as it was typed."""
    return _MARK.sub("", owner)


def has_mark(name: str) -> bool:
    return _MARK.search(name) is not None


class InByteOrder(FunctionElement[Any]):
    """A text from one to before another, by their bytes and not by a language's order, so that an index finds it."""

    name = "in_byte_order"
    type = sa.types.NullType()  # of a boolean SQLAlchemy would ask SQLite whether it is 1, and no index serves that
    inherit_cache = True


@compiles(InByteOrder)
def _in_byte_order(element: Any, compiler: Any, **options: Any) -> str:
    at_least, below = ("~>=~", "~<~") if compiler.dialect.name == "postgresql" else (">=", "<")
    text, first, after = (compiler.process(clause, **options) for clause in element.clauses)
    return f"({text} {at_least} {first} AND {text} {below} {after})"


def named(column: sa.ColumnElement[str], name: str) -> sa.ColumnElement[bool]:
    """Owners of that name: the one with exactly this name, and those whom marks tell apart."""
    marked_alike = InByteOrder(column, sa.literal(f"{name}#"), sa.literal(f"{name}$"))  # "$" comes after "#"
    return (column == name) | (marked_alike & (sa.func.length(column) == len(name) + 9))


def is_digest(value: str) -> bool:
    return _DIGEST.fullmatch(value) is not None


def digest_text(value: str) -> str:
    if not isinstance(value, str) or not is_digest(value):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise SpecError("a digest is a sha256: 64 hexadecimal digits in lower case")
    return value


def reason_text(value: str) -> str:
    """Any text, cut and made storable: a failure is always recorded, whatever it quotes."""
    if not _storable(value):
        value = value.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")
    return value if len(value) <= MAX_REASON else value[: MAX_REASON - 1] + "…"


def _storable(value: str) -> bool:
    if "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class NotJson(SpecError, exc.DontWrapMixin):
    """A value that JSON cannot carry, or more of it than is kept. Passes through SQLAlchemy as it is."""


class Json(sa.TypeDecorator[dict[str, Any]]):
    """A JSON object as text: the same on every database."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: dict[str, Any] | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else json_text(value)

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> dict[str, Any] | None:
        return None if value is None else json.loads(value)


def json_text(value: dict[str, Any]) -> str:
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(f"not a JSON object that can be kept: {error}") from error
    if len(text) > MAX_JSON:
        raise NotJson(f"a JSON object of {len(text)} characters; at most {MAX_JSON} are kept")
    return text


class EnumText(sa.TypeDecorator[enum.StrEnum]):
    """An enum by its value."""

    impl = sa.String(16)
    cache_ok = True

    def __init__(self, choices: type[enum.StrEnum]) -> None:
        super().__init__()
        self.choices = choices

    def process_bind_param(self, value: enum.StrEnum | None, dialect: sa.Dialect) -> str | None:
        return None if value is None else self.choices(value).value

    def process_result_value(self, value: Any | None, dialect: sa.Dialect) -> enum.StrEnum | None:
        return None if value is None else self.choices(value)


# ---- tables ----

metadata = sa.MetaData()

_Id = sa.String(32)
_Digest = sa.String(64)
_Name = sa.String(MAX_NAME)
_Share = sa.String(80)
_Serial = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _time(name: str, *, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double, nullable=nullable)


schema_version = sa.Table(
    "schema_version", metadata, sa.Column("version", sa.Integer, primary_key=True), _time("applied_at")
)

owners = sa.Table(
    "owners",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("name", _Name, nullable=False, unique=True),
    sa.Column("per_day", sa.Integer),  # null: the host's default
    sa.Column("at_once", sa.Integer),
    _time("created_at"),
)

owners_by_bytes = sa.Index("owners_by_bytes", owners.c.name, postgresql_ops={"name": "varchar_pattern_ops"}).ddl_if(
    dialect="postgresql"
)
"""For `named`. SQLite compares bytes by itself, and the index of unique names serves it."""

members = sa.Table(
    "members",
    metadata,
    sa.Column("team_id", _Id, sa.ForeignKey("owners.id"), primary_key=True),
    sa.Column("owner_id", _Id, sa.ForeignKey("owners.id"), primary_key=True, index=True),
    sa.Column("captain", sa.Boolean, nullable=False),
    _time("created_at"),
    _time("joined_at", nullable=True),  # null: invited
)
"""Teams. A team is an owner that others act for: what they send for it is the team's."""

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("owner_id", _Id, sa.ForeignKey("owners.id"), nullable=False, index=True),
    sa.Column("digest", _Digest, nullable=False),
    sa.Column("scopes", sa.String(64), nullable=False),
    sa.Column("label", _Name, nullable=False),
    _time("created_at"),
    _time("expires_at", nullable=True),
    _time("revoked_at", nullable=True),
)

environments = sa.Table(
    "environments",
    metadata,
    sa.Column("env_id", _Name, primary_key=True),
    sa.Column("kind", EnumText(EnvironmentKind), nullable=False),
    sa.Column("settings", Json, nullable=False),
    sa.Column("enabled", sa.Boolean, nullable=False),
    _time("created_at"),
    _time("updated_at"),
    sa.Column("access", EnumText(Access), nullable=False, server_default=Access.PUBLIC.value),
)

guests = sa.Table(
    "guests",
    metadata,
    sa.Column("env_id", _Name, sa.ForeignKey("environments.env_id"), primary_key=True),
    sa.Column("owner_id", _Id, sa.ForeignKey("owners.id"), primary_key=True),
    _time("created_at"),
)
"""Owners, teams among them, whom the host has invited to an environment that is not public."""

seasons = sa.Table(
    "seasons",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("env_id", _Name, sa.ForeignKey("environments.env_id"), nullable=False),
    sa.Column("name", _Name, nullable=False),
    sa.Column("secret", sa.LargeBinary(32), nullable=False),  # of the public board's episodes
    sa.Column("final_secret", sa.LargeBinary(32)),  # of the finals'; null: the season ended before there were any
    sa.Column("frozen", sa.Boolean, nullable=False),
    _time("started_at"),
    _time("ended_at", nullable=True),
    sqlite_autoincrement=True,
)
sa.Index(
    "one_live_season",
    seasons.c.env_id,
    unique=True,
    sqlite_where=seasons.c.ended_at.is_(None),
    postgresql_where=seasons.c.ended_at.is_(None),
)

submissions = sa.Table(
    "submissions",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("owner_id", _Id, sa.ForeignKey("owners.id"), nullable=False),
    sa.Column("env_id", _Name, sa.ForeignKey("environments.env_id"), nullable=False),
    sa.Column("season_id", _Serial, sa.ForeignKey("seasons.id")),
    sa.Column("algorithm", _Name, nullable=False),
    sa.Column("client_id", _Name),  # chosen by the client; who shows it is the owner of what was sent without a key
    sa.Column("anonymous", sa.Boolean, nullable=False, server_default=sa.false()),  # sent without a key
    sa.Column("main_file", _Name, nullable=False),
    sa.Column("digest", _Digest, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("kind", EnumText(SubmissionKind), nullable=False),
    sa.Column("state", EnumText(State), nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("warnings", sa.Text, nullable=False, server_default=""),  # one a line
    sa.Column("log_digest", _Digest),
    sa.Column("job_id", _Serial),  # the latest, for its place in the queue
    sa.Column("score", sa.Double),  # what stands on the board; null: nothing does
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    _time("created_at"),
    _time("updated_at"),
    _time("deleted_at", nullable=True),
    sa.Column("sender_id", _Id),  # the member who sent it for a team; null: its owner did
    sa.UniqueConstraint("owner_id", "env_id", "algorithm", "version"),
    sa.Index("submissions_by_score", "env_id", "kind", "owner_id", "algorithm", "score"),
    sa.Index("submissions_by_owner", "owner_id", "state", "created_at"),
    sa.Index("submissions_by_state", "state", "created_at"),
    sa.Index("submissions_by_client", "client_id"),
    sa.Index("submissions_by_code", "digest"),
)

charges = sa.Table(
    "charges",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), nullable=False, index=True),
    sa.Column("owner_id", _Id, sa.ForeignKey("owners.id"), nullable=False),
    sa.Column("day", sa.Integer, nullable=False),  # days since 1970, UTC
    _time("refunded_at", nullable=True),
    sa.Column("sender_id", _Id),  # the member of a team whose own quota it counts against, too
    sa.Index("charges_of_day", "owner_id", "day"),
)

evaluations = sa.Table(
    "evaluations",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), nullable=False, index=True),
    sa.Column("kind", EnumText(SubmissionKind), nullable=False),
    sa.Column("score", sa.Double, nullable=False),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    sa.Column("episodes", sa.Integer, nullable=False),
    sa.Column("metrics", Json, nullable=False),
    _time("created_at"),
    sqlite_autoincrement=True,
)

draws = sa.Table(
    "draws",
    metadata,
    sa.Column("season_id", _Serial, sa.ForeignKey("seasons.id"), primary_key=True),
    sa.Column("code", _Digest, primary_key=True),
    sa.Column("conditions", _Digest, primary_key=True),  # episodes, clock and limits that it was played with
    sa.Column("fault", sa.String(16)),  # null: it has a score
    sa.Column("score", sa.Double),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    sa.Column("episodes", sa.Integer, nullable=False),
    sa.Column("metrics", Json, nullable=False),  # hidden until the season ends
    _time("created_at"),
)
"""What code got on the hidden episodes of a season. The primary key is why the same code is never drawn twice."""

practices = sa.Table(
    "practices",
    metadata,
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), primary_key=True),
    sa.Column("report", Json, nullable=False),
    _time("created_at"),
)
"""The latest practice evaluation of each submission, on public seeds. For its owner."""

finalists = sa.Table(
    "finalists",
    metadata,
    sa.Column("season_id", _Serial, sa.ForeignKey("seasons.id"), primary_key=True),
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), primary_key=True),
    sa.Column("owner_id", _Id, sa.ForeignKey("owners.id"), nullable=False),
    sa.Column("chosen", sa.Boolean, nullable=False),  # by its owner
    sa.Column("state", EnumText(FinalState), nullable=False),
    sa.Column("job_id", _Serial),
    sa.Column("score", sa.Double),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    sa.Column("episodes", sa.Integer, nullable=False, server_default="0"),
    sa.Column("metrics", Json),  # hidden until the season ends
    _time("created_at"),
)

board = sa.Table(
    "board",
    metadata,
    sa.Column("env_id", _Name, primary_key=True),
    sa.Column("kind", EnumText(SubmissionKind), primary_key=True),
    sa.Column("owner_id", _Id, sa.ForeignKey("owners.id"), primary_key=True),
    sa.Column("algorithm", _Name, primary_key=True),
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), nullable=False),
    sa.Column("score", sa.Double, nullable=False),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    _time("at"),
)
"""The best entry of each owner and algorithm, kept by the store in the transaction that changes a score."""
sa.Index("board_by_score", board.c.env_id, board.c.kind, board.c.score.desc(), board.c.at, board.c.submission_id)
sa.Index("board_by_date", board.c.env_id, board.c.kind, board.c.at, board.c.submission_id)
sa.Index(
    "board_of_algorithm",
    board.c.env_id,
    board.c.kind,
    board.c.algorithm,
    board.c.score.desc(),
    board.c.at,
    board.c.submission_id,
)

matches = sa.Table(
    "matches",
    metadata,
    sa.Column("number", _Serial, primary_key=True, autoincrement=True),
    sa.Column("id", _Id, nullable=False, unique=True),
    sa.Column("env_id", _Name, sa.ForeignKey("environments.env_id"), nullable=False),
    sa.Column("season_id", _Serial, sa.ForeignKey("seasons.id")),
    sa.Column("seed", sa.String(20), nullable=False),  # unsigned 64 bit: more than the databases' integers hold
    sa.Column("rated", sa.Boolean, nullable=False),
    sa.Column("kind", EnumText(MatchKind), nullable=False),
    sa.Column("tournament_id", _Id, sa.ForeignKey("tournaments.id"), index=True),
    sa.Column("pairing", sa.Integer),  # its number in a tournament's schedule; the seat of a challenger
    sa.Column("state", EnumText(MatchState), nullable=False),
    sa.Column("winner", sa.Integer),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("steps", sa.Integer),
    sa.Column("wall_s", sa.Double),
    sa.Column("replay_digest", _Digest),
    _time("created_at"),
    _time("finished_at", nullable=True),
    sa.Index("matches_in_order", "env_id", "state", "number"),
    sqlite_autoincrement=True,
)

seats = sa.Table(
    "seats",
    metadata,
    sa.Column("match_number", _Serial, sa.ForeignKey("matches.number"), primary_key=True),
    sa.Column("seat", sa.Integer, primary_key=True),
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), nullable=False),
    sa.Column("score", sa.Double),
    sa.Column("status", sa.String(16)),
    sa.Column("reason", sa.Text),  # for the agent's owner
    sa.Column("log_digest", _Digest),  # so is this
    sa.Column("cpu_s", sa.Double),
    sa.Index("seats_of_submission", "submission_id", "match_number"),
)

ratings = sa.Table(
    "ratings",
    metadata,
    sa.Column("match_number", _Serial, sa.ForeignKey("matches.number"), primary_key=True),
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), primary_key=True),
    sa.Column("mu", sa.Double, nullable=False),
    sa.Column("sigma", sa.Double, nullable=False),
    _time("created_at"),
    sa.Index("ratings_of_submission", "submission_id", "match_number"),
)
"""After each rated match. The primary key is why no match moves a rating twice."""

standings = sa.Table(
    "standings",
    metadata,
    sa.Column("season_id", _Serial, sa.ForeignKey("seasons.id"), primary_key=True),
    sa.Column("board", EnumText(BoardKind), primary_key=True),
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), primary_key=True),
    sa.Column("env_id", _Name, nullable=False),
    sa.Column("owner", _Name, nullable=False),
    sa.Column("algorithm", _Name, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),  # shared where nobody can tell
    sa.Column("place", sa.Integer, nullable=False),  # the order on the page, from 1
    sa.Column("score", sa.Double, nullable=False),
    sa.Column("low", sa.Double),
    sa.Column("high", sa.Double),
    sa.Column("games", sa.Integer, nullable=False),
    sa.Column("wins", sa.Integer, nullable=False),
    sa.Column("draws", sa.Integer, nullable=False),
    sa.Column("losses", sa.Integer, nullable=False),
    sa.Column("component", sa.Integer, nullable=False),
    sa.Column("final", sa.Boolean, nullable=False, server_default=sa.false()),  # the score is that of the finals
    _time("at"),
    sa.Index("standings_in_order", "season_id", "board", "place"),
)
"""The board of a ladder, replaced as a whole by each refit, and every board of a season that has ended. It follows from
the logs: it can be made again from them."""

benches = sa.Table(
    "benches",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("submission_id", _Id, sa.ForeignKey("submissions.id"), nullable=False, index=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("after_match", _Serial, nullable=False),  # matches up to this one no longer count against it once lifted
    _time("benched_at"),
    _time("lifted_at", nullable=True),
    sqlite_autoincrement=True,
)

tournaments = sa.Table(
    "tournaments",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("env_id", _Name, sa.ForeignKey("environments.env_id"), nullable=False, index=True),
    sa.Column("season_id", _Serial, sa.ForeignKey("seasons.id")),
    sa.Column("name", _Name, nullable=False),
    sa.Column("format", sa.String(32), nullable=False),
    sa.Column("finals", sa.Boolean, nullable=False),  # decides the season
    sa.Column("settings", Json, nullable=False),  # games, rounds, seed, participants by submission id
    sa.Column("state", EnumText(TournamentState), nullable=False),
    sa.Column("result", Json),  # rounds, ties and standings, as far as they are known
    _time("created_at"),
    _time("finished_at", nullable=True),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("number", _Serial, primary_key=True, autoincrement=True),
    sa.Column("topic", sa.String(MAX_NAME + 32), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("body", Json, nullable=False),
    _time("created_at"),
    sa.Index("events_of_topic", "topic", "number"),
    sqlite_autoincrement=True,
)

hooks = sa.Table(
    "hooks",
    metadata,
    sa.Column("id", _Id, primary_key=True),
    sa.Column("owner_id", _Id, sa.ForeignKey("owners.id"), nullable=False, index=True),
    sa.Column("kind", EnumText(HookKind), nullable=False),
    sa.Column("target", sa.Text, nullable=False),  # a URL or a mail address
    sa.Column("secret", sa.String(64), nullable=False),  # signs what is sent, or is what a mail's reader confirms with
    sa.Column("failures", sa.Integer, nullable=False, server_default="0"),  # deliveries in a row that were given up
    _time("created_at"),
    _time("confirmed_at", nullable=True),  # null: nothing is sent but the confirmation
    _time("disabled_at", nullable=True),
)

deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("hook_id", _Id, sa.ForeignKey("hooks.id"), nullable=False, index=True),
    sa.Column("event", sa.String(16), nullable=False),
    sa.Column("body", Json, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("reason", sa.Text, nullable=False, server_default=""),
    _time("created_at"),
    _time("next_at", nullable=True),  # null: it is over
    _time("done_at", nullable=True),  # null and over: it was given up
    sa.Index("deliveries_due", "next_at"),
    sqlite_autoincrement=True,
)

ranks = sa.Table(
    "ranks",
    metadata,
    sa.Column("env_id", _Name, sa.ForeignKey("environments.env_id"), primary_key=True),
    sa.Column("owner", _Name, primary_key=True),
    sa.Column("algorithm", _Name, primary_key=True),
    sa.Column("rank", sa.Integer, nullable=False),
)
"""The best of each board when changes of rank were last looked for."""

rank_changes = sa.Table(
    "rank_changes",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("env_id", _Name, sa.ForeignKey("environments.env_id"), nullable=False),
    sa.Column("owner", _Name, nullable=False),
    sa.Column("algorithm", _Name, nullable=False),
    sa.Column("before", sa.Integer),  # null: it was not among the best
    sa.Column("after", sa.Integer),
    _time("created_at"),
    sa.Index("rank_changes_of_board", "env_id", "id"),
    sqlite_autoincrement=True,
)

notice_cursor = sa.Table(
    "notice_cursor",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("number", _Serial, nullable=False),  # the last event that was turned into deliveries
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", _Serial, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("payload", Json, nullable=False),
    sa.Column("key", _Name, unique=True),
    sa.Column("state", EnumText(JobState), nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("max_attempts", sa.Integer, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("worker", _Name),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("share", _Share, nullable=False, server_default=""),  # whose time it takes; empty: nobody's
    sa.Column("part", _Share, nullable=False, server_default=""),  # of a share that several use: whose of them
    sa.Column("turn", sa.Double, nullable=False, server_default="0"),  # the order in which shares take turns
    sa.Column("cost_s", sa.Double, nullable=False, server_default="0"),  # what it is expected to take
    sa.Column("yielded", sa.Integer, nullable=False, server_default="0"),  # times that it made room for others
    sa.Column("place", _Name, nullable=False, server_default=""),  # the only process that may claim it; empty: any
    sa.Column("env_id", _Name, nullable=False, server_default=""),  # the environment that its worker must have
    sa.Column("deaths", sa.Integer, nullable=False, server_default="0"),  # workers that it was lost with
    sa.Column("trace", sa.String(55), nullable=False, server_default=""),  # the traceparent of what it follows from
    _time("run_at"),
    _time("lease_until", nullable=True),
    _time("created_at"),
    _time("started_at", nullable=True),
    _time("finished_at", nullable=True),
    sqlite_autoincrement=True,
)
sa.Index("jobs_in_order", jobs.c.state, jobs.c.kind, jobs.c.priority.desc(), jobs.c.turn, jobs.c.id)
sa.Index(
    "jobs_of_share",
    jobs.c.share,
    jobs.c.kind,
    jobs.c.state,
    jobs.c.turn,
    sqlite_where=jobs.c.share != "",
    postgresql_where=jobs.c.share != "",
)
sa.Index("jobs_by_end", jobs.c.kind, jobs.c.finished_at)
