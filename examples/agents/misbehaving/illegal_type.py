"""Answers with a word where a number is asked for."""

from __future__ import annotations


def act(observation):
    return "left"
