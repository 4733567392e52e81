"""Plays the games of one match Job. Started in the orchestrator's container, with the order mounted as a file and a
folder for the socket of each agent's container; reports go to the container's log.

Exit codes: 0 if all reports were written, also those of void games; 1 otherwise.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from harena.errors import HarenaError
from harena.match.orchestrator import wire
from harena.match.orchestrator.pod_seat import PodRack
from harena.match.result import MatchResult, MatchStatus
from harena.match.run.play import play


class Reporter:
    """Writes reports to the log. One thread."""

    def __init__(self, nonce: str, out: int = 1) -> None:
        self._nonce, self._out = nonce, out
        self._numbers = itertools.count()

    def report(self, report: wire.JobReport) -> None:
        lines = wire.report_lines(self._nonce, next(self._numbers), report)
        data = "".join(f"{line}\n" for line in lines).encode()
        while data:
            data = data[os.write(self._out, data) :]


def play_series(order: wire.JobOrder, folder: Path, reporter: Reporter) -> None:
    with PodRack(order.agents, folder) as rack:
        rack.wait_for_all(order.start_s)
        reporter.report(wire.Began())
        ends_at = time.monotonic() + order.timeout_s
        for number, game in enumerate(order.games):
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                break  # the executor says that the time is over
            result = _play_one(order, number, game, left_s, rack, reporter)
            reporter.report(wire.GameOver(number, result))
            if result.status is not MatchStatus.FINISHED:
                break
    reporter.report(wire.SeriesOver())


def _play_one(
    order: wire.JobOrder, number: int, game: wire.PlannedGame, left_s: float, rack: PodRack, reporter: Reporter
) -> MatchResult:
    clock = dataclasses.replace(order.spec.clock, match_s=min(order.spec.clock.match_s, left_s))
    spec = dataclasses.replace(
        order.spec, agents=tuple(order.agents[agent] for agent in game.seats), seed=game.seed, clock=clock
    )

    def on_event(event: dict[str, Any]) -> None:
        if event.get("type") == "step":
            reporter.report(wire.Stepped(number, event))

    return play(spec, rack=rack, on_event=on_event if order.watched else None)


def main() -> int:
    try:
        order = wire.decode_order(Path(wire.ORDER_FILE).read_bytes())
        reporter = Reporter(order.nonce)
        try:
            play_series(order, Path(wire.SEATS), reporter)
        except HarenaError as error:
            reporter.report(wire.SeriesOver(error=str(error)))
        return 0
    except (HarenaError, OSError, msgspec.MsgspecError) as error:
        print(f"the orchestrator failed: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
