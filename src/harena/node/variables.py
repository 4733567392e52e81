"""Environment variables of clients of a server, and the only module of theirs that reads them."""

from __future__ import annotations

import os

from harena.ledger.budget import as_label

TOKEN = "HARENA_TOKEN"


def server() -> str | None:
    """Return HARENA_SERVER, the server of sessions, where a call names none."""
    return os.environ.get("HARENA_SERVER") or None


def run() -> str:
    """Return HARENA_RUN, the run that a server counts what is used for, where a call names none."""
    return as_label(os.environ.get("HARENA_RUN", ""))


def agent() -> str:
    """Return HARENA_AGENT, the same for an agent."""
    return as_label(os.environ.get("HARENA_AGENT", ""))


def token() -> str | None:
    """Return HARENA_TOKEN, the token for servers, where a call gives none."""
    return os.environ.get(TOKEN) or None


def kubernetes() -> bool | str | None:
    """Return HARENA_KUBERNETES, which puts sessions on a cluster: True for 1, else the context of the kubeconfig."""
    given = os.environ.get("HARENA_KUBERNETES", "")
    return None if given in ("", "0") else True if given == "1" else given


def environment_with(token: str) -> dict[str, str]:
    """Return the environment of a child process that uses this token."""
    return {**os.environ, TOKEN: token}
