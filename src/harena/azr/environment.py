"""Environment variables: the one module of training that reads or sets them. (boxed.py runs inside a box, and reads
that box's own.)"""

from __future__ import annotations

import os

KEY_VARIABLE = "OPENAI_API_KEY"
"""Sent to the server of the openai engine, as a bearer token."""
SPINS = "10000"
"""Rounds that a thread of torch waits before it sleeps, on CPU: about half a millisecond. Much less, and threads sleep
between one operation and the next; the usual thirty times as much stalls them wherever others use the cores."""


def server_key() -> str:
    return os.environ.get(KEY_VARIABLE, "")


def is_first_process() -> bool:
    """Whether this process leads its run, by what torchrun or `accelerate launch` say: known before they have met."""
    return os.environ.get("RANK", "0") in ("", "0")


def wait_briefly() -> None:
    """Torch's threads wait for each other by spinning for milliseconds. With boxes, or anything else, on the same cores
    that makes a step many times slower. Read when torch is loaded; what a person has set counts."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def silence_trl() -> None:
    """No warning that `rollout_func` is experimental; the docs say so."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def silence_wandb() -> None:
    """No error reports to the maker of wandb, which it sends also when offline."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
