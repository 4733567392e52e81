"""Takes all the memory there is."""

from __future__ import annotations


def act(observation):
    hoard = []
    while True:
        hoard.append(bytearray(b"x") * (16 << 20))
