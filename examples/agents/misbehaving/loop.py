"""Thinks for ever."""

from __future__ import annotations


def act(observation):
    while True:
        pass
