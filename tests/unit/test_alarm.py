"""The timer thread outlives its actions' failures."""

from __future__ import annotations

import threading
import time

import pytest

from harena.sandbox import alarm as alarm_module
from harena.sandbox.alarm import Alarm


def test_one_failing_action_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    alarm, rang, told = Alarm(), threading.Event(), list[str]()
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(str(args.exc_value)))

    def fail() -> None:
        raise OSError("a box that cannot be closed")

    alarm.at(time.monotonic(), fail)
    alarm.at(time.monotonic() + 0.01, rang.set)  # pyright: ignore[reportArgumentType]
    assert rang.wait(20)
    assert told == ["a box that cannot be closed"]


def test_cancelled_calls_are_not_made_and_take_a_bounded_amount_of_memory() -> None:
    alarm, rang = Alarm(), threading.Event()
    later = time.monotonic() + 86400
    kept = [alarm.at(later, lambda: None) for _ in range(10)]
    for _ in range(20_000):
        alarm.at(later, lambda: None).cancel()
    assert len(alarm._heap) <= 2 * alarm_module.MANY + len(kept)
    soon = alarm.at(time.monotonic() + 0.05, rang.set)  # pyright: ignore[reportArgumentType]
    soon.cancel()
    soon.cancel()
    last = threading.Event()
    alarm.at(time.monotonic() + 0.1, last.set)  # pyright: ignore[reportArgumentType]
    assert last.wait(20)
    assert not rang.is_set()
