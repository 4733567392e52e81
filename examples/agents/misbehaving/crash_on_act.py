"""Fails when it is asked."""

from __future__ import annotations


def act(observation):
    return 1 // 0
