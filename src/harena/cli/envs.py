"""`harena envs`: with harena-arena it also adds games to an arena, without it only lists them."""

from __future__ import annotations

import argparse
import importlib

from harena.lazy import missing_part


def fill(name: str, command: argparse.ArgumentParser) -> None:
    try:
        part = importlib.import_module("harena.arena.host_cli")
    except ModuleNotFoundError as error:
        if missing_part(error) is None:
            raise
        part = importlib.import_module("harena.match.cli.commands")
    part.fill(name, command)
