"""Every answer of the HTTP API, defined once. The API builds these values and its OpenAPI document from the classes
below; the client reads JSON into them. To add a field, add it here and give it a value in `harena.api.answers.views`.

Guarantees: JSON has the fields in the order in which they are declared. A field that is `for_owner` or `if_any` is
left out of the JSON where it is None. The default of any other field is for clients of an arena that does not send it
yet. Texts are as other users wrote them: a terminal or a page must make them safe. Imports nothing but the standard
library, so that the client needs no web framework. One file, however long: whoever looks for a field finds it here.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
"""JSON that is passed on as it came."""
Time = datetime.datetime
UNKNOWN = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
"""A time that an arena did not send."""

ACTIVE = frozenset({"received", "checked", "queued", "running"})
"""States of a submission that it will leave by itself."""


def if_any() -> Any:
    """A field that is left out where it has no value."""
    return field(default=None, metadata={"optional": True})


def for_owner() -> Any:
    """A field that only the owner of a submission and the host are shown. None for everybody else."""
    return if_any()


def is_optional(part: dataclasses.Field[Any]) -> bool:
    return bool(part.metadata.get("optional"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Every refusal."""

    code: str
    detail: str
    hint: str
    request_id: str
    trace_id: str
    """Finds everything that followed from the request in logs and traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlace:
    """What a worker on another machine needs to know."""

    version: str
    """Version of the server. A worker must have the same."""
    lease_s: float
    """A job is lost when its worker is not heard of for this long."""
    kinds: tuple[str, ...]
    games: tuple[str, ...]
    """Environments that a worker must have to play them."""
    scripts: tuple[str, ...]
    """Environments that scripts bring along."""


# ---- the arena and its visitor ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    per_day: int | None
    at_once: int | None
    used_today: int
    active: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    owner: str
    scopes: tuple[str, ...] = ()
    csrf: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    team: str
    owner: str
    captain: bool
    """The captain invites and removes members."""
    joined: bool
    """False: invited, and has not answered yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """An owner that its members act for: they share its quota, its finalists and its rows on boards."""

    name: str
    members: tuple[Membership, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Me(Visitor):
    quota: Quota
    teams: tuple[Membership, ...] = ()
    """Invitations are among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Submissions that wait, and jobs that run, matches among them (at most 100 are counted)."""

    waiting: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    name: str
    version: str = ""
    anonymous_submit: bool = False
    anonymous_read: bool = True
    me: Visitor | None = None
    """None without a key."""
    time: Time = UNKNOWN
    queue: Load


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    id: str
    owner: str = ""
    scopes: tuple[str, ...] = ()
    label: str = ""
    created_at: Time = UNKNOWN
    expires_at: Time | None = None
    revoked_at: Time | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    key: Key
    token: str = field(repr=False)
    """Shown only in this answer."""


# ---- environments and seasons ----


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalsProgress:
    """How many finalists of a verified season are through, and how many there are."""

    done: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    """`secret` and `final_secret` are shown when it has ended; the commitments are their hashes."""

    id: int
    env_id: str = ""
    name: str = ""
    frozen: bool = False
    started_at: Time = UNKNOWN
    ended_at: Time | None = None
    commitment: str | None = None
    final_commitment: str | None = None
    """To the second secret, which the finals' seeds follow from."""
    secret: str | None = None
    """Hexadecimal."""
    final_secret: str | None = None
    finals: FinalsProgress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    env_id: str
    kind: str = ""
    """verified, ladder or script-only."""
    title: str = ""
    summary: str = ""
    seats: int = 1
    enabled: bool = True
    entries: int = 0
    submissions: int = 0
    season: Season | None = None
    access: str = "public"
    """public, invited (only guests submit) or private (only guests know of it)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guests:
    """Owners, teams among them, whom the host has invited to an environment that is not public."""

    env_id: str
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentWithSettings(Environment):
    settings: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentDetails(Environment):
    rules: str = ""
    sample_agent: str = ""
    observation: Object | None = None
    action: Object | None = None
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    packages: tuple[str, ...] = ()
    seasons: tuple[Season, ...] = ()


# ---- boards ----


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardEntry:
    """One line of a board."""

    rank: int = 0
    submission_id: str = ""
    owner: str = ""
    algorithm: str = ""
    version: int = 1
    score: float
    low: float | None = None
    high: float | None = None
    """The interval of the score, low to high."""
    at: Time = UNKNOWN
    games: int | None = None
    wins: int | None = None
    draws: int | None = None
    losses: int | None = None
    provisional: bool = False
    benched: bool = False
    spark: tuple[float, ...] = ()
    anonymous: bool = False
    tries: int | None = None
    """Programs of the owner that were evaluated on the hidden episodes; the score is their best."""
    discounted: float | None = None
    """The score less what the best of that many equal tries has by luck."""
    final: bool = False
    """The score is that of the finals."""
    public_score: float | None = None
    """The score before the finals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    env_id: str
    board: str = ""
    """verified, self-reported or ladder."""
    season: Season | None = None
    total: int = 0
    live: bool = False
    entries: tuple[BoardEntry, ...] = ()

    def _repr_html_(self) -> str:
        from harena import notebook

        head = ("rank", "owner", "algorithm", "score", "low", "high", "games", "wins", "draws", "losses")
        rows = [[getattr(entry, name) for name in head] for entry in self.entries]
        return notebook.table(f"{self.env_id}, {self.board} board, {self.total} in all", head, rows)


# ---- submissions ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Result of an evaluation. For a verified one only the score is shown until its season has ended."""

    hidden: bool = False
    episodes: int = 0
    iqm: float | None = None
    median: float | None = None
    returns: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    cpu_s: float | None = None
    wall_s: float | None = None
    metrics: Object = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalResult:
    """A submission's evaluation in the finals."""

    score: float
    low: float | None = None
    high: float | None = None
    episodes: int = 0
    chosen: bool = False
    """Its owner chose it."""
    returns: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """`reason`, `warnings`, `main_file`, `has_log` and `finalist` are there for its owner and the host."""

    id: str
    owner: str = ""
    env_id: str = ""
    algorithm: str = ""
    version: int = 1
    kind: str = ""
    """verified or self-reported."""
    state: str = ""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    created_at: Time = UNKNOWN
    updated_at: Time = UNKNOWN
    digest: str = ""
    season_id: int | None = None
    mine: bool = False
    anonymous: bool = False
    position: int | None = None
    """Position in the queue, counted from 1."""
    waits_for: str | None = None
    """What it waits for: "submissions ahead of it", "a worker", or "another attempt" after a fault of the platform."""
    eta_s: float | None = None
    evaluation: Evaluation | None = None
    standing: BoardEntry | None = None
    final_result: FinalResult | None = None
    """Once the season has ended."""
    benched: str | bool | None = None
    """True, and to its owner the reason, where it may not play."""
    reason: str | None = for_owner()
    """Why it failed or was refused."""
    warnings: tuple[str, ...] | None = for_owner()
    main_file: str | None = for_owner()
    has_log: bool | None = for_owner()
    finalist: bool | None = for_owner()
    """Its owner has chosen it for the finals."""

    @property
    def final(self) -> bool:
        return self.state not in ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class PracticeEpisode:
    episode: int
    seed: str = ""
    score: float = 0.0
    steps: int = 0
    fault: str = ""
    has_log: bool = False
    url: str | None = None
    """Address of its replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Practice:
    score: float | None = None
    episodes: tuple[PracticeEpisode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeReplay:
    episode: int
    roles: tuple[str, ...] = ()
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentVersions:
    """All versions of one agent, the newest first."""

    owner: str
    algorithm: str = ""
    env_id: str = ""
    versions: tuple[Submission, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixAgent:
    submission_id: str
    owner: str
    algorithm: str
    version: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Games between two agents, and how they ended for `one`."""

    one: str
    other: str
    wins: int
    draws: int
    losses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Head-to-head results of the best agents of a ladder, in the order of the board."""

    env_id: str
    agents: tuple[MatrixAgent, ...]
    meetings: tuple[Meeting, ...]
    """Each pair that has met, both ways around."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAgent:
    owner: str
    algorithm: str
    env_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSubmission:
    id: str
    owner: str
    algorithm: str
    version: int
    env_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMatch:
    id: str
    number: int
    env_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundEnvironment:
    env_id: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search has found, a few of each."""

    environments: tuple[FoundEnvironment, ...]
    owners: tuple[str, ...]
    agents: tuple[FoundAgent, ...]
    submissions: tuple[FoundSubmission, ...]
    matches: tuple[FoundMatch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatingPoint:
    """A rating after one match."""

    match: int = 0
    """The match's number."""
    at: Time = UNKNOWN
    rating: float = 0.0
    sigma: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Opponent:
    submission_id: str
    owner: str = ""
    algorithm: str = ""
    version: int = 1
    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0


# ---- matches and tournaments ----


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchSeat:
    """`reason` and `has_log` are there for the agent's owner and the host."""

    seat: int = 0
    submission_id: str = ""
    owner: str = ""
    algorithm: str = ""
    version: int = 1
    score: float | None = None
    status: str | None = None
    cpu_s: float | None = None
    reason: str | None = for_owner()
    has_log: bool | None = for_owner()


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    id: str
    number: int = 0
    env_id: str = ""
    kind: str = ""
    """ladder, challenge or tournament."""
    rated: bool = False
    state: str = ""
    """scheduled, then finished, timeout, cancelled or void."""
    winner: int | None = None
    """A seat; None for a draw, and before the end."""
    reason: str = ""
    steps: int | None = None
    wall_s: float | None = None
    created_at: Time = UNKNOWN
    finished_at: Time | None = None
    has_replay: bool = False
    tournament_id: str | None = None
    seats: tuple[MatchSeat, ...] = ()

    @property
    def final(self) -> bool:
        return self.state != "scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant:
    submission_id: str = ""
    owner: str = ""
    algorithm: str = ""
    version: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A meeting; agents and winner are indices of the tournament's participants."""

    agents: tuple[int, ...] = ()
    matches: tuple[str, ...] = ()
    scores: tuple[float | None, ...] = ()
    winner: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    number: int = 0
    name: str | None = if_any()
    """That of a bracket's stage."""
    ties: tuple[Tie, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TournamentStanding:
    agent: int = 0
    rank: int = 0
    points: float = 0.0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    byes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tournament:
    """A tournament. Lists leave out its rounds."""

    id: str
    env_id: str = ""
    name: str = ""
    format: str = ""
    finals: bool = False
    state: str = ""
    created_at: Time = UNKNOWN
    finished_at: Time | None = None
    participants: tuple[Participant, ...] = ()
    rounds: tuple[Round, ...] = ()
    standings: tuple[TournamentStanding, ...] = ()
    notes: tuple[str, ...] = ()


# ---- the host's desk ----


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    id: int
    kind: str = ""
    state: str = ""
    attempts: int = 0
    max_attempts: int = 0
    worker: str | None = None
    reason: str = ""
    payload: Object = field(default_factory=dict[str, Any])
    created_at: Time = UNKNOWN
    started_at: Time | None = None
    finished_at: Time | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueue:
    counts: Mapping[str, Mapping[str, int]]
    """Number of jobs by kind and state."""
    running: tuple[JobStatus, ...] = ()
    dead: tuple[JobStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchedAgent:
    submission_id: str
    owner: str = ""
    algorithm: str = ""
    version: int = 1
    env_id: str = ""
    reason: str = ""
    benched_at: Time = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerSummary:
    owner: str
    per_day: int | None = None
    at_once: int | None = None
    submissions: int = 0
    keys: int = 0
    created_at: Time = UNKNOWN


# ---- the paths of existing clients ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractSubmitted:
    id: str
    status: str
    env_id: str
    algorithm: str
    board: str
    """The board on which it will appear: verified, self-reported or ladder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractResult:
    id: str
    status: str
    score: float | None
    env_id: str
    algorithm: str
    created_at: Time
    error: str | None
    log: str | None
    """The end of its log, for its owner, and for everybody who knows the id of what was sent without a key."""
    user_id: str
    kind: str
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractEntry:
    rank: int
    id: str
    user_id: str
    env_id: str
    algorithm: str
    score: float
    low: float | None
    high: float | None
    kind: str
    created_at: Time


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractEnvironment:
    id: str
    env_id: str
    name: str
    kind: str
    entries: int
    submissions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    status: str
    """healthy, or degraded: it answers, and something in `problems` needs the host."""
    version: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A webhook or a mail address that is told of results and changes of rank."""

    id: str
    kind: str
    """webhook or mail."""
    target: str
    confirmed: bool
    disabled: bool
    """Too many deliveries in a row did not arrive."""
    created_at: Time = UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHook(Hook):
    secret: str | None = field(default=None, repr=False)
    """Signs what a webhook gets. It is shown once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    id: int
    event: str
    """result, rank, confirm or test."""
    attempts: int
    reason: str
    """Why the last attempt failed."""
    created_at: Time = UNKNOWN
    done_at: Time | None = None
    next_at: Time | None = None
    """None and not done: it was given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    cancelled: int
    """How many submissions were cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Something that a host has changed."""

    at: str
    who: str
    what: str
    body: str
    """The request's JSON, cut after 2,000 characters."""
    address: str
    request_id: str
    status: int | None


# ---- streams ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """That something has changed. `kind` reset: the stream is new, or some were missed, so read what you show."""

    topic: str = ""
    kind: str = ""
    body: Object = field(default_factory=dict[str, Any])
    id: str = ""
    """Its number in the arena's log of events: the id of the event, which is not in the JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchFrame:
    """A step of a running match: `event` is frame, or finished for the last one."""

    event: str
    body: Object

    @property
    def text(self) -> str:
        """The position for a terminal; "" where the game hides it until the end."""
        text = self.body.get("text")
        return text if isinstance(text, str) else ""


# ---- JSON ----


def as_json(value: Any) -> Any:
    """What a JSON encoder takes: dictionaries for the classes above, texts for times."""
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if dataclasses.is_dataclass(value):
        names, values_of, nested, optional = _plan(type(value))
        found: dict[str, Any] = dict(zip(names, values_of(value), strict=False))
        for name in nested:
            found[name] = as_json(found[name])
        for name in optional:
            if found[name] is None:
                del found[name]
        return found
    if isinstance(value, Mapping):
        return {name: as_json(part) for name, part in typing.cast("Object", value).items()}
    if isinstance(value, tuple | list):
        return [as_json(part) for part in typing.cast("list[Any]", value)]
    return value


@functools.cache
def _plan(kind: type[Any]) -> tuple[list[str], Callable[[Any], tuple[Any, ...]], list[str], list[str]]:
    """Names of all fields, a getter of their values, fields that are not plain JSON, fields that may be left out."""
    parts, hints = dataclasses.fields(kind), typing.get_type_hints(kind)
    names = [part.name for part in parts]
    values_of: Callable[[Any], tuple[Any, ...]] = operator.attrgetter(*names, names[0])  # two or more: a tuple
    nested = [name for name in names if not _is_plain(hints[name])]
    return names, values_of, nested, [part.name for part in parts if is_optional(part)]


def _is_plain(hint: Any) -> bool:
    parts = typing.get_args(hint)
    return all(map(_is_plain, parts)) if parts else hint in (str, int, float, bool, types.NoneType, Any, Ellipsis)
