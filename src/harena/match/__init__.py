"""Matches between agents that trust nobody: games, seats, clocks, runner, replays."""

from __future__ import annotations
