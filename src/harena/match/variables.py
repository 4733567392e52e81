"""Environment variables of matches and of the executor. The only module of `harena.match` that reads them;
docs/executor.md has the table that `table` makes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

AGENT_PACKAGES = "HARENA_AGENT_PACKAGES"
AGENT_REQUIREMENTS = "HARENA_AGENT_REQUIREMENTS"
GAMES = "HARENA_GAMES"
VARIABLES = {
    AGENT_PACKAGES: "Packages in the boxes of agents besides numpy, with commas between them (none)",
    AGENT_REQUIREMENTS: "`1`: install the requirements.txt of an agent for its box (it is ignored)",
    GAMES: "Games that may be imported as `module:factory`, with commas between them (none)",
    "CONFIG_PATH": "The executor's YAML file, unless `--config` names one (none)",
    "EXECUTOR_HOST": "`executor.host` of the file",
    "EXECUTOR_PORT": "`executor.port` of the file",
    "EXECUTOR_METRICS_PORT": "`executor.metrics_port` of the file",
    "EXECUTOR_AUTH_TOKEN": "`executor.auth_token` of the file",
    "EXECUTOR_INSECURE": "`executor.insecure` of the file",
    "LOG_LEVEL": "`executor.log_level` of the file",
    "KUBECONFIG": "Cluster for matches as Jobs, unless `k8s.kubeconfig` is set (the pod's own, else `~/.kube/config`)",
    "AWS_ACCESS_KEY_ID": "Key for `s3://` addresses of agents (none: requests are not signed)",
    "AWS_SECRET_ACCESS_KEY": "Its secret",
    "AWS_SESSION_TOKEN": "Its session, where the key is temporary (none)",
    "XDG_STATE_HOME": "Where replays are kept, below `harena/replays`, without `sandbox.replay_dir` (`~/.local/state`)",
}
"""What each one does, and in brackets what holds without it."""


def text(name: str, values: Mapping[str, str] | None = None) -> str | None:
    """A variable of the table, in `values` or else in this process's environment."""
    if name not in VARIABLES:
        raise KeyError(f"{name} is not in the table of variables")
    return (os.environ if values is None else values).get(name)


def names(name: str) -> list[str]:
    """A list with commas."""
    return [part.strip() for part in (text(name) or "").split(",") if part.strip()]


def add_name(name: str, value: str) -> None:
    """Here and in processes started from now on."""
    os.environ[name] = ",".join([*names(name), value])


def state_folder() -> Path:
    return Path(text("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "harena"


def table() -> str:
    """Return the variables as a table in Markdown, for the docs."""
    lines = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join(["| variable | what it does (without it) |", "|---|---|", *lines])
