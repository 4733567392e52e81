"""Settings of the executor, from a YAML file and environment variables. The schema is closed: an unknown key, a wrong
type or a value out of range is an error that names the key and the nearest valid one; nothing is silently ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml

from harena.match import variables
from harena.match.agent import image, validate
from harena.match.executor import readers
from harena.match.executor.readers import ConfigError

log = logging.getLogger("harena.executor")

MAX_FILE = 1 << 20
ENVIRONMENT = {
    "EXECUTOR_HOST": "host",
    "EXECUTOR_PORT": "port",
    "EXECUTOR_METRICS_PORT": "metrics_port",
    "EXECUTOR_AUTH_TOKEN": "auth_token",
    "EXECUTOR_INSECURE": "insecure",
    "LOG_LEVEL": "log_level",
}
"""Variables that override keys of the section `executor`."""

S = TypeVar("S")


# ---- sections ----
# Each key has its reader beside its type; a key without one is a section.


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    cert: Annotated[Path | None, readers.path] = None
    key: Annotated[Path | None, readers.path] = None
    client_ca: Annotated[Path | None, readers.path] = None
    """Clients must show a certificate that this CA signed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSection:
    host: Annotated[str, readers.text] = "127.0.0.1"
    port: Annotated[int, readers.whole(0, 65535)] = 50051
    """0 chooses a free port and prints it."""
    metrics_port: Annotated[int | None, readers.whole(0, 65535)] = None
    """Port of the metrics in Prometheus' text format, on `host`; none by default."""
    use_k8s: Annotated[bool, readers.flag] = False
    """Play each match as a Kubernetes Job; see the section `k8s`."""
    max_matches: Annotated[int, readers.whole(1, 4096)] = 10
    """Matches and validations that are accepted at once. What the cores cannot play yet waits for its turn."""
    max_watchers: Annotated[int, readers.whole(1, 4096)] = 64
    max_games: Annotated[int, readers.whole(1, 1_000_000)] = 1000
    """Maximum number of games of one request."""
    max_timeout_sec: Annotated[float, readers.number(1, 86400, "seconds")] = 3600.0
    """The longest timeout_sec a client may ask for."""
    max_message_mb: Annotated[int, readers.whole(1, 1024)] = 60
    """Maximum size of a request, and of a response with its replay."""
    grace_sec: Annotated[float, readers.number(0, 86400, "seconds")] = 30.0
    """How long running matches may continue after SIGTERM."""
    environments: Annotated[tuple[str, ...], readers.texts] = ()
    """Games of the form "module:factory" that clients may name, and other games that ListEnvironments should show."""
    auth_token: Annotated[str, readers.text] = ""
    """Clients send it as `authorization: Bearer TOKEN`."""
    insecure: Annotated[bool, readers.flag] = False
    """Allow everybody who can reach the address to run code here. Without it, such an address is refused."""
    log_level: Annotated[str, readers.level] = "INFO"
    tls: Tls = field(default_factory=Tls)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceLimits:
    cpu_count: Annotated[float, readers.number(0.01, 1024, "processors")] = 1.0
    """Processors of an agent's container in a Job. On this machine an agent always has one."""
    memory_limit: Annotated[int, readers.memory] = 512
    """Megabytes, written as "512m"."""
    processes: Annotated[int, readers.whole(1, 4096)] = 50
    start_timeout_sec: Annotated[float, readers.number(0.01, 86400, "seconds")] = 30.0
    step_timeout_sec: Annotated[float, readers.number(0.001, 86400, "seconds")] = 5.0
    match_timeout_sec: Annotated[float, readers.number(0.1, 86400, "seconds")] = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSection:
    log_kb: Annotated[int, readers.whole(1, 16384)] = 64
    """How much of each agent's output is kept."""
    output_mb: Annotated[int, readers.whole(1, 1024)] = 8
    """More than this ends the agent."""
    tmp_dir: Annotated[Path | None, readers.path] = None
    """Without effect: agents are never unpacked on the host."""
    replay_dir: Annotated[Path | None, readers.path] = None
    """Another name for replay.folder."""
    max_code_size_mb: Annotated[int | None, readers.whole(1, 1024)] = None
    """Another name for fetch.max_mb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationSection:
    """What ValidateAgent reports as an error. None of it is protection: the box is."""

    max_file_size_mb: Annotated[int, readers.whole(1, 1024)] = 10
    max_lines: Annotated[int | None, readers.whole(1, 10_000_000)] = None
    """Most lines of each Python file."""
    allowed_extensions: Annotated[tuple[str, ...] | None, readers.extensions] = None
    """Endings of an agent's files; None allows all."""
    forbidden_imports: Annotated[tuple[str, ...], readers.texts] = validate.FORBIDDEN
    """Modules and functions that an agent may neither import nor call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3:
    endpoint: Annotated[str, readers.url("https", "http")] = ""
    region: Annotated[str, readers.text] = "us-east-1"
    buckets: Annotated[tuple[str, ...], readers.texts] = ()
    """Clients may read these and no others: the server's credentials are not theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Where code_url may point; by default nowhere."""

    allow_hosts: Annotated[tuple[str, ...], readers.hosts] = ()
    private_hosts: Annotated[tuple[str, ...], readers.hosts] = ()
    """Allowed hosts that may have an address that is not public."""
    allow_http: Annotated[bool, readers.flag] = False
    file_folder: Annotated[Path | None, readers.path] = None
    """file:// URLs must be below this folder."""
    ca_file: Annotated[Path | None, readers.path] = None
    """Trusted instead of the system's certificates."""
    timeout_sec: Annotated[float, readers.number(0.1, 3600, "seconds")] = 30.0
    """Time limit for one agent, including redirects."""
    max_mb: Annotated[int, readers.whole(1, 1024)] = 50
    s3: S3 = field(default_factory=S3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """For docker_image. An image that is in the store needs none of this."""

    pull: Annotated[tuple[str, ...], readers.images] = ()
    """Repositories that are pulled from when a request names them: docker.io/library/python, registry.example/me/*."""
    only_listed: Annotated[bool, readers.flag] = False
    """Refuse images of other repositories, also stored ones."""
    pull_timeout_sec: Annotated[float, readers.number(1, 86400, "seconds")] = 600.0

    @property
    def policy(self) -> image.PullPolicy:
        return image.PullPolicy(
            allow=self.pull, only_listed=self.only_listed, timeout_s=self.pull_timeout_sec, setting="images.pull"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySection:
    folder: Annotated[Path | None, readers.path] = None
    """Where record_replay writes; None means harena/replays in $XDG_STATE_HOME or ~/.local/state."""
    base_url: Annotated[str, readers.url("https", "http")] = ""
    """The folder's address for clients; without it they get file:// URLs."""
    keep_days: Annotated[float, readers.number(0, 36500, "days")] = 0.0
    """Older replays are removed; 0 keeps them."""
    max_files: Annotated[int, readers.whole(2, 10_000_000)] = 20_000
    """Two for each game. Beyond it the oldest are removed."""
    max_mb: Annotated[int, readers.whole(1, 1 << 20)] = 2048
    """Total for all of them. Beyond it the oldest are removed."""
    format: Annotated[str, readers.one_of("json")] = "json"
    """The only format that clients get."""
    compress: Annotated[bool, readers.flag] = False
    """Write the JSON with gzip, as .json.gz."""
    max_frames: Annotated[int | None, readers.whole(1, 100_000_000)] = None
    """Frames of the JSON; later ones are left out, and the replay cannot be re-run then."""
    include_observations: Annotated[bool, readers.flag] = True
    """Observations in the frames of the JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class K8sSection:
    """Matches as Jobs: docs/kubernetes-matches.md."""

    use_k8s: Annotated[bool, readers.flag] = False
    """The same as executor.use_k8s."""
    namespace: Annotated[str, readers.label] = "rl-arena"
    orchestrator_image: Annotated[str, readers.text] = "rl-arena-orchestrator:latest"
    agent_image: Annotated[str, readers.text] = ""
    """Image with Python and numpy for agents that were sent as code; the orchestrator's if empty."""
    kubeconfig: Annotated[Path | None, readers.path] = None
    """None means $KUBECONFIG, else the service account of the pod, else ~/.kube/config."""
    contexts: Annotated[tuple[str, ...], readers.texts] = ()
    """Contexts of the kubeconfig, one for each cluster; the cluster with the fewest matches is used. None: the current
    one."""
    max_jobs: Annotated[int, readers.whole(1, 4096)] = 10
    """Matches played at once, on all clusters together."""
    cpu_request: Annotated[float, readers.number(0.01, 1024, "processors")] = 0.25
    """Processors that each container reserves. Reserve resource_limits.cpu_count for clocks that no neighbour slows."""
    start_timeout_sec: Annotated[float, readers.number(1, 86400, "seconds")] = 300.0
    """From the Job's creation until all its containers run, pulling images included."""
    ttl_sec: Annotated[int, readers.whole(0, 86400)] = 300
    """How long a Job whose executor is gone stays after its end."""
    keep_jobs: Annotated[bool, readers.flag] = False
    """Leave ended Jobs and their logs to the cluster for ttl_sec, instead of deleting them with the answer."""
    retries: Annotated[int, readers.whole(0, 10)] = 2
    """How often a match is played again that was lost through the platform: an eviction, a lost node."""
    image_pull_secrets: Annotated[tuple[str, ...], readers.texts] = ()
    node_selector: Annotated[dict[str, str], readers.mapping] = field(default_factory=dict[str, str])
    runtime_class: Annotated[str, readers.text] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    executor: ServerSection = field(default_factory=ServerSection)
    resource_limits: ResourceLimits = field(default_factory=ResourceLimits)
    sandbox: SandboxSection = field(default_factory=SandboxSection)
    validation: ValidationSection = field(default_factory=ValidationSection)
    fetch: Fetch = field(default_factory=Fetch)
    images: Images = field(default_factory=Images)
    replay: ReplaySection = field(default_factory=ReplaySection)
    k8s: K8sSection = field(default_factory=K8sSection)

    @property
    def use_k8s(self) -> bool:
        return self.executor.use_k8s or self.k8s.use_k8s


# ---- reading ----


def load(path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> ServerConfig:
    """The settings of `path`, else of $CONFIG_PATH, else the defaults; with the environment's variables over them."""
    where = path or variables.text("CONFIG_PATH", environ)
    config = parse(_read(Path(where)), name=str(where)) if where else ServerConfig()
    return _checked(dataclasses.replace(config, executor=_overridden(config.executor, environ)))


def parse(text: str | bytes, *, name: str = "config") -> ServerConfig:
    try:
        data: Any = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{name} is not YAML: {' '.join(str(error).split())[:300]}") from None
    try:
        config = _checked(_aliased(_fill(ServerConfig, data, "")))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    for key, instead in _without_effect(config).items():
        log.info("%s: %s has no effect: %s", name, key, instead)
    return config


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
        raise readers.refused(where.rstrip(".") or "the file", data, "a mapping")
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


def _overridden(section: ServerSection, environ: Mapping[str, str] | None) -> ServerSection:
    changes: dict[str, Any] = {}
    for variable, name in ENVIRONMENT.items():
        value: Any = variables.text(variable, environ)
        if not value:
            continue
        if name in ("port", "metrics_port"):
            value = int(value) if re.fullmatch(r"\d{1,5}", value) else value
        if name == "insecure":
            value = _FLAGS.get(value.lower(), value)
        changes[name] = get_args(_hints(ServerSection)[name])[1](value, variable)
    return dataclasses.replace(section, **changes)


_FLAGS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _aliased(config: ServerConfig) -> ServerConfig:
    """Move the keys that have two names to the one that is used."""
    sandbox, fetch, replay = config.sandbox, config.fetch, config.replay
    if sandbox.replay_dir is not None:
        if replay.folder not in (None, sandbox.replay_dir):
            raise ConfigError("sandbox.replay_dir and replay.folder are the same setting: give one of them")
        replay = dataclasses.replace(replay, folder=sandbox.replay_dir)
    if sandbox.max_code_size_mb is not None:
        if fetch.max_mb not in (Fetch().max_mb, sandbox.max_code_size_mb):
            raise ConfigError("sandbox.max_code_size_mb and fetch.max_mb are the same setting: give one of them")
        fetch = dataclasses.replace(fetch, max_mb=sandbox.max_code_size_mb)
    sandbox = dataclasses.replace(sandbox, replay_dir=None, max_code_size_mb=None)
    return dataclasses.replace(config, fetch=fetch, replay=replay, sandbox=sandbox)


def _without_effect(config: ServerConfig) -> dict[str, str]:
    """Keys that are given in vain, and what happens instead."""
    found: dict[str, str] = {}
    if config.sandbox.tmp_dir is not None:
        found["sandbox.tmp_dir"] = "agents are never unpacked on the host"
    if config.resource_limits.cpu_count != 1 and not config.use_k8s:
        found["resource_limits.cpu_count"] = "on this machine an agent is pinned to one core"
    if config.k8s != K8sSection() and not config.use_k8s:
        found["k8s"] = "matches are played on this machine; set executor.use_k8s to play them as Jobs"
    return found


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
    metrics_port: int | None = None,
    file_folder: str | None = None,
    insecure: bool = False,
) -> ServerConfig:
    """Return the config with what the command line gives; None changes nothing."""
    executor, fetch = config.executor, config.fetch
    if host is not None:
        executor = dataclasses.replace(executor, host=readers.text(host, "--host"))
    if port is not None:
        executor = dataclasses.replace(executor, port=readers.whole(0, 65535)(port, "--port"))
    if metrics_port is not None:
        executor = dataclasses.replace(executor, metrics_port=readers.whole(0, 65535)(metrics_port, "--metrics-port"))
    if file_folder is not None:
        fetch = dataclasses.replace(fetch, file_folder=readers.path(file_folder, "--files"))
    if insecure:
        executor = dataclasses.replace(executor, insecure=True)
    return dataclasses.replace(config, executor=executor, fetch=fetch)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.startswith("unix:")
