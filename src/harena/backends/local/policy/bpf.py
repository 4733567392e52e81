"""Compiles actions for system calls into a seccomp filter, a program of classic BPF."""

from __future__ import annotations

import collections
import errno
import os
import struct
import sys
from typing import NamedTuple, TypeAlias

from harena.backends.local.policy import syscalls
from harena.errors import IsolationUnavailable

WORD = 0xFFFF_FFFF
ALLOW = 0x7FFF_0000
KILL_PROCESS = 0x8000_0000
_ERRNO = 0x0005_0000
PRETEND = _ERRNO
"""The call is not made, and succeeds as far as its caller can tell."""
EPERM = _ERRNO | errno.EPERM
ENOSYS = _ERRNO | errno.ENOSYS
EAFNOSUPPORT = _ERRNO | errno.EAFNOSUPPORT
EPROTONOSUPPORT = _ERRNO | errno.EPROTONOSUPPORT
EOPNOTSUPP = _ERRNO | errno.EOPNOTSUPP
ENOPROTOOPT = _ERRNO | errno.ENOPROTOOPT


class Check(NamedTuple):
    """Check of one half of an argument: `then` applies if it is one of the values, after masking."""

    word: int
    values: tuple[int, ...]
    then: Action
    otherwise: Action
    mask: int = WORD


Action: TypeAlias = int | Check
"""Action for a call: a return value of the filter, or a check that leads to one."""

_AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_ARCH_WORD, _NUMBER_WORD = 4, 0
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JA, _JEQ, _JGE, _JSET = 0x05, 0x15, 0x35, 0x45
_REACH = 255  # a conditional jump has a byte for how far
_FEW = 3  # numbers told apart one by one rather than by halving: fewer instructions, hardly more steps


def own_machine() -> str:
    machine = os.uname().machine
    # A 32-bit userland under a 64-bit kernel: each of its calls would count as foreign.
    return machine if sys.maxsize > WORD else f"{machine} in 32-bit mode"


def compiled(actions: dict[str, Action], machine: str) -> bytes:
    """Return the filter as an array of struct sock_filter. A known call without an action gets EPERM."""
    if machine not in syscalls.NUMBERS:
        known = " or ".join(syscalls.NUMBERS)
        raise IsolationUnavailable(f"no seccomp filter for a {machine} machine", fix=f"use a 64-bit {known} host")
    names = {number: name for name, number in syscalls.NUMBERS[machine].items()}
    by_number = [actions.get(names[n], EPERM) if n in names else ENOSYS for n in range(max(names) + 1)]
    assembler = Assembler()
    kill = assembler.action(KILL_PROCESS)
    assembler.search([*by_number, ENOSYS])
    search = assembler.load(_NUMBER_WORD)
    assembler.jump(_JEQ, _AUDIT_ARCH[machine], search, kill)
    assembler.load(_ARCH_WORD)
    return assembler.code()


class Assembler:
    """Builds a program from its end to its start: jumps only go forward, so a target exists before its jumps.

    Positions are counted from the end.
    """

    def __init__(self) -> None:
        self._backwards: list[tuple[int, int, int, int]] = []
        self._placed: dict[Action, int] = {}

    def code(self) -> bytes:
        return b"".join(struct.pack("<HBBI", *instruction) for instruction in reversed(self._backwards))

    def action(self, action: Action) -> int:
        """Position of an action. It is written once, and again if a jump could not reach it."""
        place = self._placed.get(action)
        if place is None:
            place = self._emit(_RETURN, action) if isinstance(action, int) else self._check(action)
            self._placed[action] = place
        return place

    def search(self, by_number: list[Action]) -> int:
        """Write a search for the action of the loaded number; the last action applies to every higher number as
        well."""
        starts = [n for n in range(len(by_number)) if n == 0 or by_number[n] != by_number[n - 1]]
        return self._tree(by_number, [*starts, len(by_number)])

    def load(self, word: int) -> int:
        """Load a word of struct seccomp_data for the instructions that were written last."""
        return self._emit(_LOAD, word)

    def jump(self, operation: int, value: int, then: int, otherwise: int) -> int:
        then, otherwise = self._near(then), self._near(otherwise)
        here = len(self._backwards)
        return self._emit(operation, value, here - then - 1, here - otherwise - 1)

    def _tree(self, by_number: list[Action], bounds: list[int]) -> int:
        usual, others = _sort(by_number, bounds[0], bounds[-1])
        if len(others) <= min(_FEW, len(bounds) - 2):
            place = self.action(usual)
            for number in reversed(others):
                place = self.jump(_JEQ, number, self.action(by_number[number]), place)
            return place
        # To install a filter the kernel runs it once for every number: halve the numbers, not the ranges.
        middle = (bounds[0] + bounds[-1]) / 2
        half = min(range(1, len(bounds) - 1), key=lambda i: abs(bounds[i] - middle))
        above = self._tree(by_number, bounds[half:])
        below = self._tree(by_number, bounds[: half + 1])
        return self.jump(_JGE, bounds[half], above, below)

    def _check(self, check: Check) -> int:
        then, otherwise = self.action(check.then), self.action(check.otherwise)
        if check.values == (0,) and check.mask != WORD:
            self.jump(_JSET, check.mask, otherwise, then)
            return self.load(check.word)
        self._choose(_spans(sorted(check.values)), then, otherwise)
        if check.mask != WORD:
            self._emit(_AND, check.mask)
        return self.load(check.word)

    def _choose(self, spans: list[tuple[int, int]], then: int, otherwise: int) -> int:
        if len(spans) > _FEW:
            half = len(spans) // 2
            above = self._choose(spans[half:], then, otherwise)
            below = self._choose(spans[:half], then, otherwise)
            return self.jump(_JGE, spans[half][0], above, below)
        for first, last in reversed(spans):
            if first == last:
                otherwise = self.jump(_JEQ, first, then, otherwise)
            else:
                otherwise = self.jump(_JGE, first, self.jump(_JGE, last + 1, otherwise, then), otherwise)
        return otherwise

    def _near(self, place: int) -> int:
        if self._reaches(place):
            return place
        operation, _, _, value = self._backwards[place]
        if operation != _RETURN:
            return self._emit(_JA, len(self._backwards) - place - 1)
        if not self._reaches(self._placed[value]):
            self._placed[value] = self._emit(_RETURN, value)
        return self._placed[value]

    def _reaches(self, place: int) -> bool:
        # One less than a jump can: its other target may still need an instruction in between.
        return len(self._backwards) - place - 1 < _REACH

    def _emit(self, operation: int, value: int, then: int = 0, otherwise: int = 0) -> int:
        self._backwards.append((operation, then, otherwise, value))
        return len(self._backwards) - 1


def _spans(values: list[int]) -> list[tuple[int, int]]:
    """First and last of each stretch of neighbours; two by two they are told apart one by one."""
    spans: list[tuple[int, int]] = []
    for value in values:
        if spans and value == spans[-1][1] + 1 and value < WORD:
            spans[-1] = spans[-1][0], value
        else:
            spans.append((value, value))
    return [
        s
        for first, last in spans
        for s in ([(first, last)] if last > first + 1 else [(v, v) for v in range(first, last + 1)])
    ]


def _sort(by_number: list[Action], start: int, stop: int) -> tuple[Action, list[int]]:
    """The usual action of a stretch, and the numbers in it that have another one."""
    [(usual, _)] = collections.Counter(by_number[start:stop]).most_common(1)
    if stop == len(by_number):
        usual = by_number[-1]  # what is usual here also gets every higher number
    return usual, [n for n in range(start, stop) if by_number[n] != usual]
