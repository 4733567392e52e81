"""What an arena answers, as values. Guarantees: the fields that are named here have the types that are named here.
Fields that are not named are dropped, so that a newer arena can say more; those that are missing have their default,
so that an older one can say less. Texts are as other users wrote them: a terminal or a page must make them safe.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Object = Mapping[str, Any]
"""JSON that is passed on as it came."""

ACTIVE = frozenset({"received", "checked", "queued", "running"})
"""States of a submission that it will leave by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    owner: str
    scopes: tuple[str, ...] = ()
    quota: Object | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    name: str
    version: str = ""
    anonymous_submit: bool = False
    anonymous_read: bool = True
    me: Me | None = None
    """None without a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Season:
    id: int
    env_id: str = ""
    name: str = ""
    frozen: bool = False
    started_at: datetime.datetime | None = None
    ended_at: datetime.datetime | None = None
    commitment: str | None = None
    final_commitment: str | None = None
    """To the second secret, which the finals' seeds follow from."""
    secret: str | None = None
    """Hexadecimal, when the season has ended."""
    final_secret: str | None = None
    finals: Object | None = None
    """Progress of a verified season's finals: finalists that are `done`, and the `total`."""


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
    rules: str = ""
    """This and what follows comes with `environment`, not with `environments`."""
    sample_agent: str = ""
    observation: Object | None = None
    action: Object | None = None
    limits: Object | None = None
    packages: tuple[str, ...] = ()
    seasons: tuple[Season, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of a board."""

    rank: int = 0
    submission_id: str = ""
    owner: str = ""
    algorithm: str = ""
    version: int = 1
    score: float | None = None
    low: float | None = None
    high: float | None = None
    """The interval of the score, low to high."""
    at: datetime.datetime | None = None
    games: int | None = None
    wins: int | None = None
    draws: int | None = None
    losses: int | None = None
    provisional: bool = False
    benched: bool = False
    anonymous: bool = False
    spark: tuple[float, ...] = ()
    tries: int | None = None
    """Programs of the owner that were evaluated on the hidden episodes; the score is their best."""
    discounted: float | None = None
    """The score less what the best of that many equal tries has by luck."""
    final: bool = False
    """The score is that of the finals."""
    public_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    env_id: str
    board: str = ""
    """verified, self-reported or ladder."""
    season: Season | None = None
    total: int = 0
    live: bool = False
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    hidden: bool = False
    """Only the number of episodes is told until the season has ended."""
    episodes: int = 0
    iqm: float | None = None
    median: float | None = None
    returns: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    cpu_s: float | None = None
    wall_s: float | None = None
    metrics: Object | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    id: str
    owner: str = ""
    env_id: str = ""
    algorithm: str = ""
    version: int = 1
    kind: str | None = None
    """verified or self-reported; None before it was checked."""
    state: str = ""
    score: float | None = None
    low: float | None = None
    high: float | None = None
    created_at: datetime.datetime | None = None
    updated_at: datetime.datetime | None = None
    digest: str = ""
    season_id: int | None = None
    mine: bool = False
    anonymous: bool = False
    position: int | None = None
    """In the queue, from 1."""
    eta_s: float | None = None
    evaluation: Evaluation | None = None
    standing: Entry | None = None
    final_result: Object | None = None
    """Its evaluation in the finals, once the season has ended."""
    benched: str | bool | None = None
    """True, and to its owner the reason, where it may not play."""
    reason: str | None = None
    """Why it failed or was refused. This and what follows is told to its owner only."""
    warnings: tuple[str, ...] = ()
    main_file: str = ""
    has_log: bool = False
    finalist: bool = False
    """Its owner has chosen it for the finals."""

    @property
    def final(self) -> bool:
        return self.state not in ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    episode: int
    roles: tuple[str, ...] = ()


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
class Agent:
    """All versions of one lineage, the newest first."""

    owner: str
    algorithm: str = ""
    env_id: str = ""
    versions: tuple[Submission, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A rating after one match."""

    match: int = 0
    """Its number."""
    at: datetime.datetime | None = None
    rating: float = 0.0
    sigma: float | None = None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    seat: int = 0
    submission_id: str = ""
    owner: str = ""
    algorithm: str = ""
    version: int = 1
    score: float | None = None
    status: str | None = None
    cpu_s: float | None = None
    reason: str | None = None
    """Told to the seat's owner only."""
    has_log: bool = False


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
    created_at: datetime.datetime | None = None
    finished_at: datetime.datetime | None = None
    has_replay: bool = False
    tournament_id: str | None = None
    seats: tuple[Seat, ...] = ()

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
    ties: tuple[Tie, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    agent: int = 0
    rank: int = 0
    points: float = 0.0
    wins: int = 0
    draws: int = 0
    losses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tournament:
    id: str
    env_id: str = ""
    name: str = ""
    format: str = ""
    finals: bool = False
    state: str = ""
    created_at: datetime.datetime | None = None
    finished_at: datetime.datetime | None = None
    participants: tuple[Participant, ...] = ()
    rounds: tuple[Round, ...] = ()
    standings: tuple[Placing, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    id: str
    owner: str = ""
    scopes: tuple[str, ...] = ()
    label: str = ""
    created_at: datetime.datetime | None = None
    expires_at: datetime.datetime | None = None
    revoked_at: datetime.datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    key: Key
    token: str = field(repr=False)
    """Told this once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """That something has changed. `kind` reset: the stream is new, or some were missed, so read what you show."""

    topic: str = ""
    kind: str = ""
    body: Object = field(default_factory=dict[str, Any])
    id: str = ""
    """Its number in the arena's log of events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Of a running match: `event` is frame, or finished for the last one."""

    event: str
    body: Object

    @property
    def text(self) -> str:
        """The position for a terminal; "" where the game hides it until the end."""
        text = self.body.get("text")
        return text if isinstance(text, str) else ""


def as_json(value: Any) -> Any:
    """Back to what JSON can carry."""
    if dataclasses.is_dataclass(value):
        return {part.name: as_json(getattr(value, part.name)) for part in dataclasses.fields(value)}
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, tuple | list):
        return [as_json(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
    return value
