from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MatchStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_UNKNOWN: _ClassVar[MatchStatus]
    STATUS_SUCCESS: _ClassVar[MatchStatus]
    STATUS_TIMEOUT: _ClassVar[MatchStatus]
    STATUS_ERROR: _ClassVar[MatchStatus]
    STATUS_CANCELLED: _ClassVar[MatchStatus]
STATUS_UNKNOWN: MatchStatus
STATUS_SUCCESS: MatchStatus
STATUS_TIMEOUT: MatchStatus
STATUS_ERROR: MatchStatus
STATUS_CANCELLED: MatchStatus

class MatchRequest(_message.Message):
    __slots__ = ("match_id", "environment", "agents", "timeout_sec", "record_replay", "seed", "games", "include_replay", "clock", "config", "include_logs", "watchable", "priority")
    MATCH_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SEC_FIELD_NUMBER: _ClassVar[int]
    RECORD_REPLAY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    GAMES_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_REPLAY_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_LOGS_FIELD_NUMBER: _ClassVar[int]
    WATCHABLE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    match_id: str
    environment: str
    agents: _containers.RepeatedCompositeFieldContainer[AgentData]
    timeout_sec: int
    record_replay: bool
    seed: int
    games: int
    include_replay: bool
    clock: Clock
    config: str
    include_logs: bool
    watchable: bool
    priority: int
    def __init__(self, match_id: _Optional[str] = ..., environment: _Optional[str] = ..., agents: _Optional[_Iterable[_Union[AgentData, _Mapping]]] = ..., timeout_sec: _Optional[int] = ..., record_replay: _Optional[bool] = ..., seed: _Optional[int] = ..., games: _Optional[int] = ..., include_replay: _Optional[bool] = ..., clock: _Optional[_Union[Clock, _Mapping]] = ..., config: _Optional[str] = ..., include_logs: _Optional[bool] = ..., watchable: _Optional[bool] = ..., priority: _Optional[int] = ...) -> None: ...

class AgentData(_message.Message):
    __slots__ = ("agent_id", "code_url", "version", "metadata", "docker_image", "code_zip")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_URL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    DOCKER_IMAGE_FIELD_NUMBER: _ClassVar[int]
    CODE_ZIP_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    code_url: str
    version: str
    metadata: _containers.ScalarMap[str, str]
    docker_image: str
    code_zip: bytes
    def __init__(self, agent_id: _Optional[str] = ..., code_url: _Optional[str] = ..., version: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., docker_image: _Optional[str] = ..., code_zip: _Optional[bytes] = ...) -> None: ...

class Clock(_message.Message):
    __slots__ = ("start_sec", "move_sec", "bank_sec", "match_sec")
    START_SEC_FIELD_NUMBER: _ClassVar[int]
    MOVE_SEC_FIELD_NUMBER: _ClassVar[int]
    BANK_SEC_FIELD_NUMBER: _ClassVar[int]
    MATCH_SEC_FIELD_NUMBER: _ClassVar[int]
    start_sec: float
    move_sec: float
    bank_sec: float
    match_sec: float
    def __init__(self, start_sec: _Optional[float] = ..., move_sec: _Optional[float] = ..., bank_sec: _Optional[float] = ..., match_sec: _Optional[float] = ...) -> None: ...

class MatchResponse(_message.Message):
    __slots__ = ("match_id", "status", "winner_agent_id", "agent_results", "replay_url", "error_message", "total_steps", "execution_time_sec", "replay_html_url", "seed", "replay", "reason", "environment", "games", "warnings", "distinct_games", "void_cause")
    MATCH_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WINNER_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_RESULTS_FIELD_NUMBER: _ClassVar[int]
    REPLAY_URL_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_SEC_FIELD_NUMBER: _ClassVar[int]
    REPLAY_HTML_URL_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    GAMES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DISTINCT_GAMES_FIELD_NUMBER: _ClassVar[int]
    VOID_CAUSE_FIELD_NUMBER: _ClassVar[int]
    match_id: str
    status: MatchStatus
    winner_agent_id: str
    agent_results: _containers.RepeatedCompositeFieldContainer[AgentResult]
    replay_url: str
    error_message: str
    total_steps: int
    execution_time_sec: float
    replay_html_url: str
    seed: int
    replay: bytes
    reason: str
    environment: str
    games: _containers.RepeatedCompositeFieldContainer[GameResult]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    distinct_games: int
    void_cause: str
    def __init__(self, match_id: _Optional[str] = ..., status: _Optional[_Union[MatchStatus, str]] = ..., winner_agent_id: _Optional[str] = ..., agent_results: _Optional[_Iterable[_Union[AgentResult, _Mapping]]] = ..., replay_url: _Optional[str] = ..., error_message: _Optional[str] = ..., total_steps: _Optional[int] = ..., execution_time_sec: _Optional[float] = ..., replay_html_url: _Optional[str] = ..., seed: _Optional[int] = ..., replay: _Optional[bytes] = ..., reason: _Optional[str] = ..., environment: _Optional[str] = ..., games: _Optional[_Iterable[_Union[GameResult, _Mapping]]] = ..., warnings: _Optional[_Iterable[str]] = ..., distinct_games: _Optional[int] = ..., void_cause: _Optional[str] = ...) -> None: ...

class AgentResult(_message.Message):
    __slots__ = ("agent_id", "score", "errors", "error_message", "status", "cpu_sec", "log_tail", "log", "moves", "start_sec")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CPU_SEC_FIELD_NUMBER: _ClassVar[int]
    LOG_TAIL_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    START_SEC_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    score: float
    errors: int
    error_message: str
    status: str
    cpu_sec: float
    log_tail: str
    log: str
    moves: int
    start_sec: float
    def __init__(self, agent_id: _Optional[str] = ..., score: _Optional[float] = ..., errors: _Optional[int] = ..., error_message: _Optional[str] = ..., status: _Optional[str] = ..., cpu_sec: _Optional[float] = ..., log_tail: _Optional[str] = ..., log: _Optional[str] = ..., moves: _Optional[int] = ..., start_sec: _Optional[float] = ...) -> None: ...

class GameResult(_message.Message):
    __slots__ = ("game", "seed", "status", "winner_agent_id", "reason", "total_steps", "execution_time_sec", "seats", "replay_url", "replay_html_url", "void_cause")
    GAME_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WINNER_AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_TIME_SEC_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    REPLAY_URL_FIELD_NUMBER: _ClassVar[int]
    REPLAY_HTML_URL_FIELD_NUMBER: _ClassVar[int]
    VOID_CAUSE_FIELD_NUMBER: _ClassVar[int]
    game: int
    seed: int
    status: MatchStatus
    winner_agent_id: str
    reason: str
    total_steps: int
    execution_time_sec: float
    seats: _containers.RepeatedCompositeFieldContainer[SeatResult]
    replay_url: str
    replay_html_url: str
    void_cause: str
    def __init__(self, game: _Optional[int] = ..., seed: _Optional[int] = ..., status: _Optional[_Union[MatchStatus, str]] = ..., winner_agent_id: _Optional[str] = ..., reason: _Optional[str] = ..., total_steps: _Optional[int] = ..., execution_time_sec: _Optional[float] = ..., seats: _Optional[_Iterable[_Union[SeatResult, _Mapping]]] = ..., replay_url: _Optional[str] = ..., replay_html_url: _Optional[str] = ..., void_cause: _Optional[str] = ...) -> None: ...

class SeatResult(_message.Message):
    __slots__ = ("agent_id", "score", "status", "reason", "moves", "cpu_sec")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    CPU_SEC_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    score: float
    status: str
    reason: str
    moves: int
    cpu_sec: float
    def __init__(self, agent_id: _Optional[str] = ..., score: _Optional[float] = ..., status: _Optional[str] = ..., reason: _Optional[str] = ..., moves: _Optional[int] = ..., cpu_sec: _Optional[float] = ...) -> None: ...

class ValidationRequest(_message.Message):
    __slots__ = ("agent_id", "code_zip", "environment")
    AGENT_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_ZIP_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    agent_id: str
    code_zip: bytes
    environment: str
    def __init__(self, agent_id: _Optional[str] = ..., code_zip: _Optional[bytes] = ..., environment: _Optional[str] = ...) -> None: ...

class ValidationResponse(_message.Message):
    __slots__ = ("valid", "errors", "warnings")
    VALID_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    valid: bool
    errors: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, valid: _Optional[bool] = ..., errors: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class HealthCheckRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HealthCheckResponse(_message.Message):
    __slots__ = ("healthy", "version", "active_matches", "max_matches", "waiting_matches")
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_MATCHES_FIELD_NUMBER: _ClassVar[int]
    MAX_MATCHES_FIELD_NUMBER: _ClassVar[int]
    WAITING_MATCHES_FIELD_NUMBER: _ClassVar[int]
    healthy: bool
    version: str
    active_matches: int
    max_matches: int
    waiting_matches: int
    def __init__(self, healthy: _Optional[bool] = ..., version: _Optional[str] = ..., active_matches: _Optional[int] = ..., max_matches: _Optional[int] = ..., waiting_matches: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("match_id", "match")
    MATCH_ID_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    match_id: str
    match: MatchRequest
    def __init__(self, match_id: _Optional[str] = ..., match: _Optional[_Union[MatchRequest, _Mapping]] = ...) -> None: ...

class MatchEvent(_message.Message):
    __slots__ = ("match_id", "type", "game", "step", "actions", "rewards", "view", "text", "clocks", "skipped", "seats", "game_result", "result")
    class ActionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: str
        def __init__(self, key: _Optional[int] = ..., value: _Optional[str] = ...) -> None: ...
    class RewardsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MATCH_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    GAME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    VIEW_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CLOCKS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    GAME_RESULT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    match_id: str
    type: str
    game: int
    step: int
    actions: _containers.ScalarMap[int, str]
    rewards: _containers.ScalarMap[int, float]
    view: str
    text: str
    clocks: _containers.RepeatedCompositeFieldContainer[SeatClock]
    skipped: int
    seats: _containers.RepeatedScalarFieldContainer[str]
    game_result: GameResult
    result: MatchResponse
    def __init__(self, match_id: _Optional[str] = ..., type: _Optional[str] = ..., game: _Optional[int] = ..., step: _Optional[int] = ..., actions: _Optional[_Mapping[int, str]] = ..., rewards: _Optional[_Mapping[int, float]] = ..., view: _Optional[str] = ..., text: _Optional[str] = ..., clocks: _Optional[_Iterable[_Union[SeatClock, _Mapping]]] = ..., skipped: _Optional[int] = ..., seats: _Optional[_Iterable[str]] = ..., game_result: _Optional[_Union[GameResult, _Mapping]] = ..., result: _Optional[_Union[MatchResponse, _Mapping]] = ...) -> None: ...

class SeatClock(_message.Message):
    __slots__ = ("cpu_sec", "bank_sec", "moves")
    CPU_SEC_FIELD_NUMBER: _ClassVar[int]
    BANK_SEC_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    cpu_sec: float
    bank_sec: float
    moves: int
    def __init__(self, cpu_sec: _Optional[float] = ..., bank_sec: _Optional[float] = ..., moves: _Optional[int] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("match_id",)
    MATCH_ID_FIELD_NUMBER: _ClassVar[int]
    match_id: str
    def __init__(self, match_id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: bool
    def __init__(self, cancelled: _Optional[bool] = ...) -> None: ...

class ListEnvironmentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListEnvironmentsResponse(_message.Message):
    __slots__ = ("environments",)
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    environments: _containers.RepeatedCompositeFieldContainer[Environment]
    def __init__(self, environments: _Optional[_Iterable[_Union[Environment, _Mapping]]] = ...) -> None: ...

class Environment(_message.Message):
    __slots__ = ("id", "seats", "simultaneous", "hidden", "summary", "observation", "action")
    ID_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    SIMULTANEOUS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    id: str
    seats: int
    simultaneous: bool
    hidden: bool
    summary: str
    observation: str
    action: str
    def __init__(self, id: _Optional[str] = ..., seats: _Optional[int] = ..., simultaneous: _Optional[bool] = ..., hidden: _Optional[bool] = ..., summary: _Optional[str] = ..., observation: _Optional[str] = ..., action: _Optional[str] = ...) -> None: ...
