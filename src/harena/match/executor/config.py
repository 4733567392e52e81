"""Settings of the executor, from a YAML file and environment variables. The schema is closed: an unknown key, a wrong
type or a value out of range is an error that names the key and the nearest valid one; nothing is silently ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import logging
import math
import os
import re
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml

from harena.errors import SpecError

log = logging.getLogger("harena.executor")

MAX_FILE = 1 << 20
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
ENVIRONMENT = {
    "EXECUTOR_HOST": "host",
    "EXECUTOR_PORT": "port",
    "EXECUTOR_AUTH_TOKEN": "auth_token",
    "EXECUTOR_INSECURE": "insecure",
    "LOG_LEVEL": "log_level",
}
"""Variables that override keys of the section `executor`."""

Reader = Callable[[Any, str], Any]
S = TypeVar("S")


class ConfigError(SpecError):
    """A setting is invalid. The message names the key, the value and what is expected."""


# ---- readers: a value as YAML gave it, and its dotted key ----


def _refuse(key: str, value: object, wanted: str) -> ConfigError:
    return ConfigError(f"{key}: expected {wanted}, found {reprlib.repr(value)}")


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip() or any(ord(char) < 32 for char in value):
        raise _refuse(key, value, "a text")
    return value


def _flag(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise _refuse(key, value, "true or false")
    return value


def _whole(low: int, high: int) -> Reader:
    def read(value: Any, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _refuse(key, value, f"a whole number from {low} to {high}")
        return value

    return read


def _number(low: float, high: float, unit: str) -> Reader:
    def read(value: Any, key: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _refuse(key, value, f"{unit} from {low:g} to {high:g}")
        return float(value)

    return read


def _memory(value: Any, key: str) -> int:
    """Megabytes, from "512m", "1g", "1Gi" or plain bytes, as container tools write it."""
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(i?b?)", str(value).strip().lower())
    if isinstance(value, bool | float) or match is None:
        raise _refuse(key, value, 'a size as "512m" or "1g"')
    size = int(match[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[match[2]]
    if not 16 << 20 <= size <= 1 << 40:
        raise _refuse(key, value, "a size from 16m to 1024g")
    return math.ceil(size / (1 << 20))


def _one_core(value: Any, key: str) -> float:
    if isinstance(value, bool) or value != 1:
        raise _refuse(key, value, "1: an agent is pinned to one core")
    return 1.0


def _level(value: Any, key: str) -> str:
    name = str(value).upper()
    if name not in LOG_LEVELS:
        raise _refuse(key, value, f"one of {', '.join(LOG_LEVELS)}")
    return name


def _texts(value: Any, key: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _refuse(key, value, "a list of texts")
    return tuple(_text(item, f"{key}[{at}]") for at, item in enumerate(cast("list[Any]", value)))


def _hosts(value: Any, key: str) -> tuple[str, ...]:
    return tuple(_host(item, f"{key}[{at}]") for at, item in enumerate(_texts(value, key)))


def _host(name: str, key: str) -> str:
    if not re.fullmatch(r"(\*\.)?[\w.-]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?", name):
        raise _refuse(key, name, 'a host as "example.org", "example.org:8443" or "*.example.org"')
    return name.lower()


def _url(*schemes: str) -> Reader:
    def read(value: Any, key: str) -> str:
        text = _text(value, key)
        if not text.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise _refuse(key, value, f"a URL that begins with {' or '.join(f'{scheme}://' for scheme in schemes)}")
        return text.rstrip("/")

    return read


def _path(value: Any, key: str) -> Path:
    return Path(_text(value, key)).expanduser()


# ---- sections ----
# Each key has its reader beside its type; a key without one is a section.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    cert: Annotated[Path | None, _path] = None
    key: Annotated[Path | None, _path] = None
    client_ca: Annotated[Path | None, _path] = None
    """Clients must show a certificate that this CA signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSection:
    host: Annotated[str, _text] = "127.0.0.1"
    port: Annotated[int, _whole(0, 65535)] = 50051
    """0 chooses a free port and prints it."""
    max_matches: Annotated[int, _whole(0, 4096)] = 0
    """Matches and validations at once; 0 means one for each core."""
    max_watchers: Annotated[int, _whole(1, 4096)] = 64
    max_games: Annotated[int, _whole(1, 1_000_000)] = 1000
    """Maximum number of games of one request."""
    max_timeout_sec: Annotated[float, _number(1, 86400, "seconds")] = 3600.0
    """The longest timeout_sec a client may ask for."""
    max_message_mb: Annotated[int, _whole(1, 1024)] = 60
    """Maximum size of a request, and of a response with its replay."""
    grace_sec: Annotated[float, _number(0, 86400, "seconds")] = 30.0
    """How long running matches may continue after SIGTERM."""
    environments: Annotated[tuple[str, ...], _texts] = ()
    """Games of the form "module:factory" that clients may name, and other games that ListEnvironments should show."""
    auth_token: Annotated[str, _text] = ""
    """Clients send it as `authorization: Bearer TOKEN`."""
    insecure: Annotated[bool, _flag] = False
    """Allow everybody who can reach the address to run code here. Without it, such an address is refused."""
    log_level: Annotated[str, _level] = "INFO"
    tls: Tls = field(default_factory=Tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    cpu_count: Annotated[float, _one_core] = 1.0
    memory_limit: Annotated[int, _memory] = 512
    """Megabytes, written as "512m"."""
    processes: Annotated[int, _whole(1, 4096)] = 50
    start_timeout_sec: Annotated[float, _number(0.01, 86400, "seconds")] = 30.0
    step_timeout_sec: Annotated[float, _number(0.001, 86400, "seconds")] = 5.0
    match_timeout_sec: Annotated[float, _number(0.1, 86400, "seconds")] = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSection:
    log_kb: Annotated[int, _whole(1, 16384)] = 64
    """How much of each agent's output is kept."""
    output_mb: Annotated[int, _whole(1, 1024)] = 8
    """More than this ends the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSection:
    max_file_size_mb: Annotated[int, _whole(1, 1024)] = 10
    forbidden_imports: Annotated[tuple[str, ...] | None, _texts] = None
    """Modules to warn about. This is no protection; the box is. None means the built-in list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3:
    endpoint: Annotated[str, _url("https", "http")] = ""
    region: Annotated[str, _text] = "us-east-1"
    buckets: Annotated[tuple[str, ...], _texts] = ()
    """Clients may read these and no others: the server's credentials are not theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Where code_url may point; by default nowhere."""

    allow_hosts: Annotated[tuple[str, ...], _hosts] = ()
    private_hosts: Annotated[tuple[str, ...], _hosts] = ()
    """Allowed hosts that may have an address that is not public."""
    allow_http: Annotated[bool, _flag] = False
    file_folder: Annotated[Path | None, _path] = None
    """file:// URLs must be below this folder."""
    ca_file: Annotated[Path | None, _path] = None
    """Trusted instead of the system's certificates."""
    timeout_sec: Annotated[float, _number(0.1, 3600, "seconds")] = 30.0
    """Time limit for one agent, including redirects."""
    max_mb: Annotated[int, _whole(1, 1024)] = 50
    s3: S3 = field(default_factory=S3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySection:
    folder: Annotated[Path | None, _path] = None
    """Where record_replay writes; None means harena/replays in $XDG_STATE_HOME or ~/.local/state."""
    base_url: Annotated[str, _url("https", "http")] = ""
    """The folder's address for clients; without it they get file:// URLs."""
    keep_days: Annotated[float, _number(0, 36500, "days")] = 0.0
    """Older replays are removed; 0 keeps them."""
    max_files: Annotated[int, _whole(2, 10_000_000)] = 20_000
    """Two for each game. Beyond it the oldest are removed."""
    max_mb: Annotated[int, _whole(1, 1 << 20)] = 2048
    """Total for all of them. Beyond it the oldest are removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    executor: ServerSection = field(default_factory=ServerSection)
    resource_limits: ResourceLimits = field(default_factory=ResourceLimits)
    sandbox: SandboxSection = field(default_factory=SandboxSection)
    validation: ValidationSection = field(default_factory=ValidationSection)
    fetch: Fetch = field(default_factory=Fetch)
    replay: ReplaySection = field(default_factory=ReplaySection)


# ---- reading ----


def load(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> ServerConfig:
    """The settings of `path`, else of $CONFIG_PATH, else the defaults; with the environment's variables over them."""
    environ = os.environ if environ is None else environ
    where = path or environ.get("CONFIG_PATH")
    config = parse(_read(Path(where)), name=str(where)) if where else ServerConfig()
    return _checked(dataclasses.replace(config, executor=_overridden(config.executor, environ)))


def parse(text: str | bytes, *, name: str = "config") -> ServerConfig:
    try:
        data: Any = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())[:300]}") from None
    if isinstance(data, dict) and "k8s" in data:
        log.info("%s: the section k8s is ignored: matches run on this machine only", name)
        cast("dict[Any, Any]", data).pop("k8s")
    try:
        return _checked(_fill(ServerConfig, data, ""))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from None
    if len(data) > MAX_FILE:
        raise ConfigError(f"the config file {path} is larger than {MAX_FILE} bytes")
    return data


def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _fill(kind: type[S], data: Any, where: str) -> S:
    if data is None:  # a section whose keys are all commented out
        data = {}
    if not isinstance(data, dict):
        raise _refuse(where.rstrip(".") or "the file", data, "a mapping")
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for key, value in cast("dict[Any, Any]", data).items():
        if key not in hints:
            raise ConfigError(f"{where}{key}: no such key; {_nearest(str(key), list(hints))}")
        if get_origin(hints[key]) is not Annotated:
            values[key] = _fill(hints[key], value, f"{where}{key}.")
        elif value is not None:  # `key:` alone leaves the default
            values[key] = get_args(hints[key])[1](value, f"{where}{key}")
    return kind(**values)


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"


def _overridden(section: ServerSection, environ: Mapping[str, str]) -> ServerSection:
    changes: dict[str, Any] = {}
    for variable, name in ENVIRONMENT.items():
        value: Any = environ.get(variable)
        if not value:
            continue
        if name == "port":
            value = int(value) if re.fullmatch(r"\d{1,5}", value) else value
        if name == "insecure":
            value = _FLAGS.get(value.lower(), value)
        changes[name] = get_args(_hints(ServerSection)[name])[1](value, variable)
    return dataclasses.replace(section, **changes)


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _checked(config: ServerConfig) -> ServerConfig:
    """What one key alone does not show."""
    tls, limits = config.executor.tls, config.resource_limits
    if (tls.cert is None) != (tls.key is None):
        raise ConfigError("executor.tls: cert and key belong together, one is missing")
    if tls.client_ca is not None and tls.cert is None:
        raise ConfigError("executor.tls: client_ca needs cert and key")
    if limits.match_timeout_sec > config.executor.max_timeout_sec:
        raise ConfigError("resource_limits.match_timeout_sec is above executor.max_timeout_sec: raise the latter")
    allowed = set(config.fetch.allow_hosts)
    for host in config.fetch.private_hosts:
        if host not in allowed:
            raise ConfigError(f"fetch.private_hosts: {host} is not in fetch.allow_hosts: add it there too")
    return config


def override(
    config: ServerConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    file_folder: str | None = None,
    insecure: bool = False,
) -> ServerConfig:
    """With what the command line gives; None changes nothing."""
    executor, fetch = config.executor, config.fetch
    if host is not None:
        executor = dataclasses.replace(executor, host=_text(host, "--host"))
    if port is not None:
        executor = dataclasses.replace(executor, port=_whole(0, 65535)(port, "--port"))
    if file_folder is not None:
        fetch = dataclasses.replace(fetch, file_folder=_path(file_folder, "--files"))
    if insecure:
        executor = dataclasses.replace(executor, insecure=True)
    return dataclasses.replace(config, executor=executor, fetch=fetch)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.startswith("unix:")
