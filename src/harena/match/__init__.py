"""Matches between untrusted agents: games, seats, clocks, runner, replays."""

from __future__ import annotations
