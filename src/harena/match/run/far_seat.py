"""Seats whose boxes another machine holds: those of a server, of nodes or of containers.

Guarantees: nothing of the other machine's files is named. The harness goes there as the source of the process, so it is
always this version. All clocks of the agent are read on its machine: what the network takes is never on its account.
"""

from __future__ import annotations

import time

from harena.match.result import AgentCode
from harena.match.run.agent_box import far_source
from harena.match.run.image_seat import ImageSeat
from harena.match.run.seat import Seat
from harena.sandbox.backend import Turn
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import Limits

SOON_S = 0.001
"""How long the node waits for an answer before the others are paused."""


class _FarClocks(Seat):
    """Clocks of an agent, read on its machine."""

    _span_ns = 0
    """How long the agent was waited for since it was asked."""

    def _pin(self, cpus: set[int]) -> None:
        """Nothing: the processors of this machine are not those of the agent."""

    def _start_deadline(self) -> float:
        return time.monotonic() + self.place.clock.start_s

    def ask(self, observation: bytes) -> None:
        self._span_ns = 0
        super().ask(observation)

    def answer_batch(self, match_deadline: float) -> bytes:
        self._span_ns = 0
        return super().answer_batch(match_deadline)

    def _soon(self) -> bytes | None:
        turn = self._turn(SOON_S, None)
        self._clock_ns = turn.cpu_ns
        return turn.packet

    def _turn(self, wait_s: float, cpu_ns: int | None) -> Turn:
        turn = super()._turn(wait_s, cpu_ns)
        self._span_ns += turn.ended_ns - turn.began_ns
        return turn

    def waited_since(self, asked: float) -> float:
        return self._span_ns / 1e9


class FarSeat(_FarClocks):
    def __init__(self, box: Sandbox, limits: Limits) -> None:
        super().__init__(box, limits, far_source())


class FarImageSeat(_FarClocks, ImageSeat):
    """The box comes from the other machine, which has the image by its digest."""

    def __init__(self, box: Sandbox, limits: Limits) -> None:
        ImageSeat.__init__(self, limits)
        self.box = box

    def _box_of(self, code: AgentCode) -> Sandbox:
        return self.box

    def _open(self, code: AgentCode, cpus: set[int]) -> None:
        super()._open(code, set())  # all processors of that machine
