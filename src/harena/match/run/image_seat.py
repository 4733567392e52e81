"""Seats of agents that are images."""

from __future__ import annotations

from collections.abc import Callable

from harena.errors import BoxError, Retry, SpecError
from harena.images.errors import ImageError
from harena.match.agent import image
from harena.match.result import AgentCode, SeatStatus
from harena.match.run.agent_log import printable
from harena.match.run.seat import Fault, Seat, SeatPlace
from harena.sandbox.box import Sandbox
from harena.sandbox.spec import Limits, Spec


class ImageSeat(Seat):
    """A seat of an agent that is an image, in a box that ends with it. The host speaks to the command of the image
    itself, by lines; it is measured, paused and pinned from its first instruction, as the kernel identifies it."""

    def __init__(self, limits: Limits) -> None:
        self._set_up(limits)
        self._ended = True  # until there is a box
        self._unusable: Fault | None = None

    def sit(self, code: AgentCode, place: SeatPlace, cpus: set[int], look: Callable[[], None]) -> None:
        if not self._met:
            self._open(code, cpus)
        super().sit(code, place, cpus, look)

    def _open(self, code: AgentCode, cpus: set[int]) -> None:
        # Its start-up time begins after this: how long a box takes is not the agent's doing.
        try:
            self.box = self._box_of(code)
            self._talk = self.box.converse_with(image.command_of(code), limits=self.limits, cpus=cpus)
            self._ended = False
        except SpecError as error:  # it names a user that it does not have, or has too many layers
            self._unusable = Fault(SeatStatus.LOAD, printable(str(error))[:500])
        except ImageError as error:
            raise BoxError(f"the image of {code.name}: {error}", retry=Retry.SAFE) from None

    def _box_of(self, code: AgentCode) -> Sandbox:
        return Sandbox(Spec(image=code.image, pull=False))

    def _begin(self, code: AgentCode, cpus: set[int]) -> None:
        self._start = self._start_message(code)
        if self.frozen:
            self._thaw()
        if not self._met and self._unusable is None:
            self._talk.met()
            self._met = True
            self._mark_ns = self._talk.cpu_ns()

    def ready(self) -> None:
        if self._unusable is not None:
            raise self._unusable
        super().ready()

    def close(self) -> None:
        super().close()
        if hasattr(self, "box"):
            self.box.close()
