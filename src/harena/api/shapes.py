"""The shapes of answers, for the OpenAPI document. Answers are built by `views` and sent as they are; a test holds the
two together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel


class Problem(BaseModel):
    """Every refusal."""

    code: str
    detail: str
    hint: str
    request_id: str


class FinalsProgress(BaseModel):
    """How many finalists of a verified season are through, and how many there are."""

    done: int
    total: int


class Season(BaseModel):
    """`secret` and `final_secret` are shown when it has ended; the commitments are their hashes."""

    id: int
    env_id: str
    name: str
    frozen: bool
    started_at: str
    ended_at: str | None
    commitment: str | None
    final_commitment: str | None
    secret: str | None
    final_secret: str | None
    finals: FinalsProgress | None


class Seasons(BaseModel):
    seasons: list[Season]


class Environment(BaseModel):
    env_id: str
    kind: str
    title: str
    summary: str
    seats: int
    enabled: bool
    entries: int
    submissions: int
    season: Season | None


class Environments(BaseModel):
    environments: list[Environment]


class EnvironmentWithSettings(Environment):
    settings: dict[str, Any]


class EnvironmentsWithSettings(BaseModel):
    environments: list[EnvironmentWithSettings]


class EnvironmentDetails(Environment):
    rules: str
    sample_agent: str
    observation: dict[str, Any] | None
    action: dict[str, Any] | None
    limits: dict[str, float]
    packages: list[str]
    seasons: list[Season]


class Entry(BaseModel):
    """`tries`: programs of its owner that were evaluated on the hidden episodes, of which this is the best;
    `discounted`: the score less what the best of that many equal tries has by luck. `final`: the score is that of the
    finals, and `public_score` what it had before them."""

    rank: int
    submission_id: str
    owner: str
    algorithm: str
    version: int
    score: float
    low: float | None
    high: float | None
    at: str
    games: int | None
    wins: int | None
    draws: int | None
    losses: int | None
    provisional: bool
    benched: bool
    spark: list[float]
    anonymous: bool
    tries: int | None
    discounted: float | None
    final: bool
    public_score: float | None


class Board(BaseModel):
    env_id: str
    board: str
    season: Season | None
    total: int
    live: bool
    entries: list[Entry]


class Evaluation(BaseModel):
    """`hidden`: of a verified evaluation only the score is shown until its season has ended."""

    hidden: bool
    episodes: int
    iqm: float | None
    median: float | None
    returns: list[float]
    steps: list[int]
    cpu_s: float | None
    wall_s: float | None
    metrics: dict[str, Any]


class FinalResult(BaseModel):
    score: float
    low: float | None
    high: float | None
    episodes: int
    chosen: bool
    returns: list[float]
    steps: list[int]


class PracticeEpisode(BaseModel):
    episode: int
    seed: str
    score: float
    steps: int
    fault: str
    has_log: bool
    url: str | None


class Practice(BaseModel):
    score: float | None
    episodes: list[PracticeEpisode]


class Submission(BaseModel):
    """`reason`, `warnings`, `main_file`, `has_log` and `finalist` are there for its owner and the host."""

    id: str
    owner: str
    env_id: str
    algorithm: str
    version: int
    kind: str
    state: str
    score: float | None
    low: float | None
    high: float | None
    created_at: str
    updated_at: str
    digest: str
    season_id: int | None
    mine: bool
    anonymous: bool
    position: int | None
    eta_s: float | None
    evaluation: Evaluation | None
    standing: Entry | None
    benched: str | bool | None
    final_result: FinalResult | None
    reason: str = ""
    warnings: list[str] = []
    main_file: str = ""
    has_log: bool = False
    finalist: bool = False


class Submissions(BaseModel):
    submissions: list[Submission]


class Agent(BaseModel):
    owner: str
    algorithm: str
    env_id: str
    versions: list[Submission]


class RatingPoint(BaseModel):
    match: int
    at: str
    rating: float
    sigma: float


class Ratings(BaseModel):
    points: list[RatingPoint]


class Opponent(BaseModel):
    submission_id: str
    owner: str
    algorithm: str
    version: int
    games: int
    wins: int
    draws: int
    losses: int


class Opponents(BaseModel):
    opponents: list[Opponent]


class EpisodeReplay(BaseModel):
    episode: int
    roles: list[str]
    url: str


class EpisodeReplays(BaseModel):
    replays: list[EpisodeReplay]


class Seat(BaseModel):
    """`reason` and `has_log` are there for the agent's owner and the host."""

    seat: int
    submission_id: str
    owner: str
    algorithm: str
    version: int
    score: float | None
    status: str | None
    cpu_s: float | None
    reason: str = ""
    has_log: bool = False


class Match(BaseModel):
    id: str
    number: int
    env_id: str
    kind: str
    rated: bool
    state: str
    winner: int | None
    reason: str
    steps: int | None
    wall_s: float | None
    created_at: str
    finished_at: str | None
    has_replay: bool
    tournament_id: str | None
    seats: list[Seat]


class Matches(BaseModel):
    matches: list[Match]


class Participant(BaseModel):
    submission_id: str
    owner: str
    algorithm: str
    version: int


class Tie(BaseModel):
    agents: list[int]
    matches: list[str]
    scores: list[float | None]
    winner: int | None


class Round(BaseModel):
    """`name` is that of a bracket's stage."""

    number: int
    name: str = ""
    ties: list[Tie]


class TournamentStanding(BaseModel):
    agent: int
    rank: int
    points: float
    wins: int
    draws: int
    losses: int
    byes: int


class Tournament(BaseModel):
    """In a list without its rounds."""

    id: str
    env_id: str
    name: str
    format: str
    finals: bool
    state: str
    created_at: str
    finished_at: str | None
    participants: list[Participant]
    rounds: list[Round]
    standings: list[TournamentStanding]
    notes: list[str]


class Tournaments(BaseModel):
    tournaments: list[Tournament]


class Quota(BaseModel):
    per_day: int | None
    at_once: int | None
    used_today: int
    active: int


class Me(BaseModel):
    owner: str
    scopes: list[str]
    csrf: str | None
    quota: Quota


class Visitor(BaseModel):
    owner: str
    scopes: list[str]
    csrf: str | None


class Load(BaseModel):
    """Submissions that wait, and jobs that run, matches among them (at most 100 are counted)."""

    waiting: int
    running: int


class Root(BaseModel):
    name: str
    version: str
    anonymous_submit: bool
    anonymous_read: bool
    me: Visitor | None
    time: str
    queue: Load


class Key(BaseModel):
    id: str
    owner: str
    scopes: list[str]
    label: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class Keys(BaseModel):
    keys: list[Key]


class NewKey(BaseModel):
    key: Key
    token: str


class Job(BaseModel):
    id: int
    kind: str
    state: str
    attempts: int
    max_attempts: int
    worker: str | None
    reason: str
    payload: dict[str, Any]
    created_at: str
    started_at: str | None
    finished_at: str | None


class JobQueue(BaseModel):
    counts: dict[str, dict[str, int]]
    running: list[Job]
    dead: list[Job]


class Bench(BaseModel):
    submission_id: str
    owner: str
    algorithm: str
    version: int
    env_id: str
    reason: str
    benched_at: str


class Benched(BaseModel):
    benched: list[Bench]


class Owner(BaseModel):
    owner: str
    per_day: int | None
    at_once: int | None
    submissions: int
    keys: int
    created_at: str


class Owners(BaseModel):
    owners: list[Owner]


class Done(BaseModel):
    ok: bool


# The contract's


class Submitted(BaseModel):
    id: str
    status: str
    env_id: str
    algorithm: str


class Result(BaseModel):
    id: str
    status: str
    score: float | None
    env_id: str
    algorithm: str
    created_at: str
    error: str | None
    user_id: str
    kind: str
    low: float | None
    high: float | None


class ContractEntry(BaseModel):
    rank: int
    id: str
    user_id: str
    env_id: str
    algorithm: str
    score: float
    low: float | None
    high: float | None
    kind: str
    created_at: str


class ContractEnvironment(BaseModel):
    id: str
    env_id: str
    name: str
    kind: str
    entries: int
    submissions: int


class Health(BaseModel):
    status: str
    version: str


def answers(
    model: Any = None, *, status: int = 200, text: str = "What was asked for.", media: Iterable[str] = ()
) -> dict[int | str, dict[str, Any]]:
    """What FastAPI documents a route with: its answer, a JSON shape or other media, and the one shape of refusals."""
    good: dict[str, Any] = {"description": text}
    if model is not None:
        good["model"] = model
    content: dict[str, Any] = {kind: {"schema": {}} for kind in media}
    if content:
        good["content"] = content
    return {
        status: good,
        "4XX": {"model": Problem, "description": "Refused: the detail says why, the hint what to do."},
    }
