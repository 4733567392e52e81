"""The timer thread outlives its actions' failures."""

from __future__ import annotations

import threading
import time

import pytest

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
