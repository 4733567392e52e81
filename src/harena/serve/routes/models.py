"""Bodies of requests, which are closed, and answers, which OpenAPI describes."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_EVENT = (1 << 53) - 1


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class NewPool(Body):
    """A pool that keeps boxes ready, from an image or a spec."""

    name: str = Field(max_length=63)
    namespace: str = Field("default", max_length=63)
    image: str | None = Field(None, max_length=1000)
    spec: dict[str, Any] | None = Field(None, description="Every field of Spec, as `harena.Spec` has it.")
    limits: dict[str, Any] | None = Field(None, description="Every field of Limits.")
    replicas: int = Field(1, ge=0, le=10_000)
    idleSeconds: float | None = Field(None, gt=0, description="Clocks of sessions from the pool; null: none.")
    lifetimeSeconds: float | None = Field(None, gt=0)
    allocationSeconds: float | None = Field(None, gt=0)


class NewScale(Body):
    """Another number of boxes to keep ready."""

    replicas: int = Field(ge=0, le=10_000)


class NewBatch(Body):
    """Python programs, in boxes of a pool, an image or a spec."""

    programs: list[str] = Field(min_length=1, max_length=100_000)
    stdin: list[str] | None = Field(None, description="The input of each program, in base64.")
    poolRef: str | None = Field(None, max_length=63)
    namespace: str = Field("default", max_length=63)
    image: str | None = Field(None, max_length=1000)
    spec: dict[str, Any] | None = Field(None, description="Every field of Spec, as `harena.Spec` has it.")
    limits: dict[str, Any] | None = Field(None, description="Every field of Limits; null: those of the pool.")
    run: str = Field("", max_length=100, description="Label of its usage.")
    agent: str = Field("", max_length=100, description="Label of its usage.")


class NewSession(Body):
    """A session from a pool, an image or a spec."""

    poolRef: str | None = Field(None, max_length=63)
    namespace: str = Field("default", max_length=63)
    image: str | None = Field(None, max_length=1000)
    spec: dict[str, Any] | None = Field(None, description="Every field of Spec, as `harena.Spec` has it.")
    limits: dict[str, Any] | None = Field(None, description="Every field of Limits.")
    idleSeconds: float | None = Field(
        None, gt=0, description="If not given: that of the pool, else 3600. null: the session does not end by itself."
    )
    lifetimeSeconds: float | None = Field(None, gt=0, description="The same; else 86400.")
    allocationSeconds: float | None = Field(None, gt=0, description="How long to wait for a box; else 60.")
    keepSteps: bool = Field(False, description="Take a snapshot after each step.")
    run: str = Field("", max_length=100, description="Label of its usage and its journal.")
    agent: str = Field("", max_length=100, description="Label of its usage and its journal.")


class Execution(Body):
    steps: list[dict[str, Any]] = Field(
        description="Each is a Command {name, command, workDir, env, container, timeout} or a FilePatch {name, path, "
        "content}."
    )
    operationId: str | None = Field(
        None, max_length=200, description="The same id never runs twice: its result is returned again."
    )
    keepGoing: bool = Field(False, description="Do not stop at the first step that fails.")
    traceId: str = Field("", max_length=200)
    stream: Literal["steps", "output"] | None = Field(
        None,
        description="Answer with JSON lines as things happen: each step's result, and with `output` each piece of "
        "output.",
    )
    after: int = Field(
        0, ge=0, le=MAX_EVENT, description="With `stream`: the number of the last event that the client has seen."
    )


class NewEvaluation(Body):
    """Steps for a second box with a copy of the session's files."""

    steps: list[dict[str, Any]] = Field(description="As in `execute`.")
    operationId: str | None = Field(None, max_length=200)
    keepGoing: bool = False
    traceId: str = Field("", max_length=200)
    image: str | None = Field(None, max_length=1000)
    spec: dict[str, Any] | None = Field(None, description="Null: that of the session, without a network.")
    limits: dict[str, Any] | None = Field(None, description="Every field of Limits; null: those of the session.")


class NetworkFields(Body):
    """What a box may reach, as `harena.Network` has it."""

    allow: list[str] = Field(max_length=256, description="Entries host:port.")
    private_names: bool = False
    max_open: int = Field(64, ge=1, le=64)
    max_connections: int = Field(10_000, ge=0, le=1 << 40)
    max_bytes: int = Field(1 << 30, ge=0, le=1 << 60)
    connect_s: float = Field(10.0, ge=0.05, le=86400)
    idle_s: float = Field(300.0, ge=0.05, le=86400)


class NewNetwork(Body):
    network: NetworkFields | None = Field(description="Null closes the network.")


class Name(Body):
    name: str = Field(max_length=100)


class ForkAt(Body):
    at: str | None = Field(None, max_length=100, description="A snapshot or a step; null: the live box.")


# ---- answers ----


class Answer(BaseModel):
    """Done."""


class Bytes(Answer):
    """The bytes."""


class Empty(Answer):
    """Done."""


class ErrorFields(Answer):
    """What happened, and whether to try again."""

    kind: str
    text: str
    retry: Literal["safe", "unknown", "never"] | None = Field(None, description="Whether a repeated request is safe.")
    errno: int | None = None
    path: str | None = None
    fix: str | None = None


class FailureAnswer(Answer):
    """A failure."""

    error: ErrorFields


class PoolAnswer(Answer):
    """A warm pool."""

    name: str
    namespace: str
    image: str | None
    replicas: int
    phase: Literal["Pending", "Scaling", "Ready", "Failed", "Draining", "Drained"]
    message: str
    ready: int
    allocated: int
    total: int
    createdAt: str


class PoolList(Answer):
    """Pools of the owner."""

    pools: list[PoolAnswer]


class PoolNumbers(Answer):
    """Numbers of boxes."""

    total: int
    ready_idle: int
    allocated: int
    available: int


class SessionAnswer(Answer):
    """A session."""

    id: str
    phase: Literal["Bound", "Released"]
    boxId: str
    image: str | None
    isolation: Literal["full", "restricted"]
    idleSeconds: float | None
    lifetimeSeconds: float | None
    keepSteps: bool
    createdAt: str


class SessionList(Answer):
    """Sessions of the owner."""

    sessions: list[SessionAnswer]


class UsageNumbers(Answer):
    """What a step used."""

    cpu_s: float
    wall_s: float
    peak_mb: float
    bytes: int


class StepRecord(Answer):
    """How a step ended."""

    index: int = Field(description="Position in the history of the session.")
    name: str
    type: Literal["Command", "FilePatch"]
    state: Literal["Succeeded", "Failed"]
    exitCode: int
    stdout: str
    stderr: str
    operationId: str
    traceId: str
    startedAt: str
    completedAt: str
    command: list[str] | None = None
    path: str | None = None
    verdict: str | None = None
    detail: str | None = None
    usage: UsageNumbers | None = None
    isolation: str | None = None
    forgotten: bool | None = Field(None, description="True if the output was too old to be kept.")


class OperationStatus(Answer):
    """How an operation ended."""

    state: Literal["Succeeded", "Failed"]
    stdout: str
    stderr: str
    exitCode: int
    startedAt: str
    completedAt: str
    steps: list[StepRecord]


class OperationResult(Answer):
    """What all steps did."""

    operationId: str
    traceId: str
    sessionId: str
    status: OperationStatus


class EndStatus(Answer):
    """How an operation ended."""

    state: Literal["Succeeded", "Failed"]
    exitCode: int
    startedAt: str
    completedAt: str


class EndResult(Answer):
    """A result without its steps and output, which came in events of their own."""

    operationId: str
    traceId: str
    sessionId: str
    status: EndStatus


class OperationEvent(Answer):
    """One line of a stream. Numbers rise; a gap shows that pieces of output were too old to be kept."""

    number: int
    event: Literal["output", "step", "end", "error"]
    step: int | None = Field(None, description="Position in the list of steps.")
    stream: Literal["stdout", "stderr"] | None = None
    data: str | None = None
    result: StepRecord | EndResult | None = None
    error: ErrorFields | None = None


class BatchEvent(Answer):
    """One line of a batch: the result of a program, or the end."""

    event: Literal["result", "end", "error"]
    index: int | None = Field(None, description="Position in the list of programs.")
    state: Literal["Succeeded", "Failed"] | None = None
    exitCode: int | None = None
    stdout: str | None = None
    stderr: str | None = None
    verdict: str | None = None
    detail: str | None = None
    usage: UsageNumbers | None = None
    isolation: str | None = None
    count: int | None = Field(None, description="With `end`: the number of results.")
    error: ErrorFields | None = None


class History(Answer):
    """Steps that have run."""

    history: list[StepRecord]


class WriteAnswer(Answer):
    """What was written, or how much of it is here."""

    sha256: str = Field(description="Of the whole file.")
    received: int = Field(description="Bytes that are here. The file is written when these are all.")
    size: int


class DeniedAttempt(Answer):
    """An attempt that was refused, with how often it was made."""

    target: str
    reason: str
    count: int


class NetworkUse(Answer):
    """What a box did with its network."""

    connections: int
    bytes_out: int
    bytes_in: int
    refused: int
    denied: list[DeniedAttempt]


class SnapshotName(Answer):
    """A snapshot."""

    name: str
