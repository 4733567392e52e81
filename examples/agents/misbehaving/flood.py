"""Prints for ever."""

from __future__ import annotations


def act(observation):
    while True:
        print("flood " * 200)
