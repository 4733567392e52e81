"""Replays: the seed and moves of a match. Guarantees: the game section of a replay depends on the match alone, not on
when or where it ran; `verify` re-runs it and reports the first difference.

It cannot prove that a seat really crashed or ran out of time, or how long its moves took. For these you have to trust
the person who ran the match, but not for scores, winner and positions.
"""

from __future__ import annotations

import hashlib
import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harena
from harena import notebook
from harena.errors import HarenaError
from harena.match import registry, spaces
from harena.match.game import Game, GameError, IllegalAction, Outcome, withdraw
from harena.match.replay import format as fmt
from harena.match.replay import json_export as replay_json
from harena.match.replay.format import ReplayError as ReplayError
from harena.match.replay.trajectories import Trajectory, trajectories

FINISHED = "finished"
OK = "ok"


class ReplayRecorder:
    """Beside a running match. `step` only appends, but for a hash of the view every hundred steps."""

    def __init__(
        self,
        game: Game,
        *,
        environment: str,
        seed: int,
        config: dict[str, Any],
        match_id: str,
        agents: Sequence[str],
        images: Sequence[str] = (),
    ) -> None:
        self._game = game
        self._environment, self._seed, self._config = environment, seed, config
        self._match_id, self._agents = match_id, tuple(map(_text, agents))
        self._images = tuple(images) if any(images) else ()
        self._steps: list[tuple[dict[int, bytes], dict[int, int]]] = []
        self._checks: list[bytes] = []
        self._withdrawn: list[tuple[int, tuple[int, ...]]] = []

    def withdraw(self, seats: Sequence[int]) -> None:
        """Record that the game withdrew these seats and continued."""
        self._withdrawn.append((len(self._steps), tuple(seats)))

    def step(self, actions: Mapping[int, bytes], cpu_us: Mapping[int, int]) -> None:
        """Record a step of the game. `actions` are encoded by the seats' action spaces."""
        self._steps.append((dict(actions), dict(cpu_us)))
        if not len(self._steps) % fmt.CHECK_EVERY:
            self._checks.append(view_hash(self._game)[: fmt.CHECK_BYTES])

    def finish(
        self,
        *,
        winner: int | None,
        scores: Sequence[float],
        status: str,
        reason: str,
        seats: Sequence[tuple[str, str]],
        started_at: float,
        ended_at: float,
        forfeited: Sequence[int] = (),
    ) -> bytes:
        """Return the compact replay. `seats`: status and reason of each."""
        moves = fmt.columns(len(self._agents), self._steps)
        return fmt.encode(
            fmt.Record(
                environment=self._environment,
                seed=self._seed,
                config=self._config,
                agents=self._agents,
                movers=moves.movers,
                order=moves.order,
                actions=moves.actions,
                cpu_us=moves.cpu_us,
                winner=winner,
                scores=tuple(map(float, scores)),
                status=status,
                reason=_text(reason),
                seats=tuple((seat_status, _text(why)) for seat_status, why in seats),
                forfeited=tuple(sorted(forfeited)),
                withdrawn=tuple(self._withdrawn),
                images=self._images,
                checks=b"".join(self._checks),
                final=view_hash(self._game)[: fmt.FINAL_BYTES],
                match_id=self._match_id,
                harena=harena.__version__,
                started_at=started_at,
                ended_at=ended_at,
            )
        )


def _text(words: str) -> str:
    """Shorten and clean text, since names and reasons may contain arbitrary output of agents."""
    return words[:2000].encode("utf-8", "replace").decode()


def view_hash(game: Game) -> bytes:
    try:
        return hashlib.sha256(fmt.canonical(game.view())).digest()
    except (TypeError, ValueError, OverflowError) as error:
        raise GameError(f"the view of {game.id} is not plain JSON data: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFrame:
    """The game after `number` steps; number 0 is the start. All values are JSON data, by seat."""

    number: int
    actions: dict[int, Any]
    """Actions that led to this frame."""
    rewards: dict[int, float]
    observations: dict[int, Any]
    view: dict[str, Any]
    text: str
    cpu_us: dict[int, int]
    """CPU time of the moves that led to this frame."""
    done: bool
    """True for the last frame of the replay."""

    def _repr_html_(self) -> str:
        return notebook.preformatted(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What `Replay.verify` found: the first difference, if any."""

    ok: bool
    steps: int
    """Number of steps re-run without a difference."""
    frame: int | None = None
    recorded: str = ""
    replayed: str = ""

    def __str__(self) -> str:
        if self.ok:
            steps = f"{self.steps} step{'' if self.steps == 1 else 's'}"
            return f"verified: {steps} re-run, the same game and the same result"
        return f"diverges at frame {self.frame}: recorded {self.recorded}, but the game gives {self.replayed}"


class _Divergence(Exception):
    def __init__(self, frame: int, recorded: str, replayed: str) -> None:
        super().__init__(f"frame {frame}: recorded {recorded}, but the game gives {replayed}")
        self.frame, self.recorded, self.replayed = frame, recorded, replayed


class Replay:
    """A finished match. Frames are not stored: they come from running the game again."""

    def __init__(self, record: fmt.Record, written: replay_json.JsonReplay | None = None) -> None:
        self._record = record
        self._written = written  # a JSON replay also says what every frame looked like: verify compares it
        self.environment = record.environment
        self.seed = record.seed
        self.config = record.config
        self.match_id = record.match_id
        self.agents = record.agents
        self.images = record.images
        self.winner = record.winner
        self.scores = record.scores
        self.status = record.status
        self.reason = record.reason
        self.seats = record.seats
        self.forfeited = record.forfeited
        self.withdrawn = record.withdrawn
        self.started_at = record.started_at
        self.ended_at = record.ended_at
        self.steps = record.steps
        self.versions = {"harena": record.harena, "environment": record.environment_version, "format": fmt.VERSION}

    @classmethod
    def load(cls, source: bytes | str | os.PathLike[str]) -> Replay:
        """Load a replay from bytes or a file, compact or JSON. The input is untrusted."""
        data = source if isinstance(source, bytes) else _read(Path(source))
        if data.startswith(fmt.MAGIC):
            return cls(fmt.decode(data))
        if data[:64].lstrip()[:1] == b"{":
            parsed = replay_json.parse(data)
            return cls(replay_json.record(parsed, _game(parsed.metadata.environment, parsed.config)), parsed)
        raise ReplayError("not a replay: neither the compact form nor JSON")

    def to_bytes(self) -> bytes:
        return fmt.encode(self._record)

    def game_part(self) -> bytes:
        """The part that depends on the match alone: the same spec gives the same bytes. Not compressed, so that it does
        not depend on the version of zstd."""
        return b"".join(fmt.game_section(self._record))

    def to_json(self) -> dict[str, Any]:
        return replay_json.document(self._record, self.frames())

    def frames(self) -> Iterator[ReplayFrame]:
        """Runs the game again. Raises ReplayError where the moves do not fit the game."""
        try:
            for number, game, actions, rewards, cpu_us in self._run():
                yield ReplayFrame(
                    number=number,
                    actions={seat: game.action_space(seat).to_json(action) for seat, action in actions.items()},
                    rewards={seat: float(reward) for seat, reward in rewards.items()},
                    observations={
                        seat: game.observation_space(seat).to_json(game.observe(seat)) for seat in range(game.seats)
                    },
                    view=game.view(),
                    text=game.text(),
                    cpu_us=cpu_us,
                    done=number == self.steps,
                )
        except _Divergence as divergence:
            raise ReplayError(f"the replay does not fit {self.environment}: {divergence}") from None

    def arrays(self) -> list[Trajectory]:
        """The trajectory of each seat as numpy arrays, for training. Runs the game again."""
        try:
            return trajectories((game, actions, rewards) for _, game, actions, rewards, _ in self._run())
        except _Divergence as divergence:
            raise ReplayError(f"the replay does not fit {self.environment}: {divergence}") from None

    def verify(self) -> Verification:
        """Re-run the game and compare everything that follows from seed and moves."""
        number = 0
        try:
            for number, game, _, rewards, _ in self._run():
                self._compare_hash(number, game)
                if self._written is not None and number:
                    self._compare_written(self._written, number, game, rewards)
                if number == self.steps:
                    self._compare_result(number, game)
        except _Divergence as found:
            return Verification(
                ok=False, steps=number, frame=found.frame, recorded=found.recorded, replayed=found.replayed
            )
        return Verification(ok=True, steps=number)

    def _run(self) -> Iterator[tuple[int, Game, dict[int, Any], Mapping[int, float], dict[int, int]]]:
        game = _game(self.environment, self.config)
        if game.seats != len(self.agents):
            raise _Divergence(0, f"{len(self.agents)} agents", f"{game.seats} seats")
        if self.steps > game.max_steps:
            raise _Divergence(0, f"{self.steps} steps", f"at most {game.max_steps}")
        game.reset(self.seed)
        if not self.steps:
            self._take_out(game, 0)
        yield 0, game, {}, {}, {}
        for number, (encoded, cpu_us) in enumerate(self._record.moves(), 1):
            self._take_out(game, number - 1)
            actions = _actions(number, game, encoded)
            try:
                rewards = game.step(actions)
            except IllegalAction as illegal:
                shown = game.action_space(illegal.seat).to_json(actions[illegal.seat])
                raise _Divergence(
                    number, f"action {_short(shown)} of seat {illegal.seat}", f"an illegal move ({illegal.reason})"
                ) from None
            except Exception as error:  # an adapter's environment may answer a move of a stranger with anything
                raise _Divergence(
                    number, "a move", f"a failure of {game.id}: {type(error).__name__}: {error}"
                ) from error
            if number == self.steps:
                self._take_out(game, number)
            yield number, game, actions, rewards, cpu_us

    def _take_out(self, game: Game, steps: int) -> None:
        for after, seats in self.withdrawn:
            if after == steps and not withdraw(game, seats):
                raise _Divergence(steps, f"{_seats(seats)} taken out", "a game that does not go on without")

    def _compare_hash(self, number: int, game: Game) -> None:
        if number == self.steps and self._record.final:
            recorded = self._record.final
        elif number and not number % fmt.CHECK_EVERY and self._record.checks:
            end = number // fmt.CHECK_EVERY * fmt.CHECK_BYTES
            recorded = self._record.checks[end - fmt.CHECK_BYTES : end]
        else:
            return
        replayed = view_hash(game)[: len(recorded)]
        if replayed != recorded:
            raise _Divergence(number, f"a position with hash {recorded.hex()}", f"one with hash {replayed.hex()}")

    def _compare_written(
        self, written: replay_json.JsonReplay, number: int, game: Game, rewards: Mapping[int, float]
    ) -> None:
        frame = written.frames[number - 1]
        for seat, key in enumerate(written.metadata.keys()):
            reward = float(rewards.get(seat, 0.0))
            if frame.rewards.get(key, 0.0) != reward:
                raise _Divergence(number, f"a reward of {frame.rewards.get(key, 0.0)} for seat {seat}", f"{reward}")
            if key not in frame.observations:
                continue
            observation = game.observation_space(seat).to_json(game.observe(seat))
            if replay_json.plain(observation) != frame.observations[key]:
                recorded = f"observation {_short(frame.observations[key])} of seat {seat}"
                raise _Divergence(number, recorded, _short(observation))

    def _compare_result(self, number: int, game: Game) -> None:
        if self.status != FINISHED:
            if self.winner is not None:
                raise _Divergence(number, f"a {self.status} match won by seat {self.winner}", "no winner")
            return
        outcome = self._outcome(number, game)
        if self.winner != outcome.winner:
            raise _Divergence(number, _winner(self.winner), _winner(outcome.winner))
        if self.scores != tuple(map(float, outcome.scores)):
            raise _Divergence(number, f"scores {list(self.scores)}", f"{list(outcome.scores)}")

    def _outcome(self, number: int, game: Game) -> Outcome:
        for seat in self.forfeited:
            if self.seats[seat][0] == OK:
                raise _Divergence(number, f"a forfeit of seat {seat}", f"no reason for one: its status is {OK}")
        to_move = list(game.to_move())
        out = {seat for _, seats in self.withdrawn for seat in seats}
        if not out.issuperset(self.forfeited):
            if not to_move:
                raise _Divergence(number, f"a forfeit of seat {self.forfeited[0]}", "a game that was over")
            return game.forfeit(self.forfeited)
        if to_move:
            raise _Divergence(
                number, f"the end after {self.steps} steps", f"a game that goes on: {_seats(to_move)} to move"
            )
        return game.outcome()

    def _repr_html_(self) -> str:
        from harena.match.replay import viewer

        try:
            page = html.escape(viewer.html(self), quote=True)
        except HarenaError as error:  # a replay of a stranger: its moves need not fit the game
            return notebook.preformatted(f"This replay cannot be shown: {error}")
        style = "width:100%;height:760px;border:0"
        return f'<iframe title="replay" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def _actions(number: int, game: Game, encoded: Mapping[int, bytes]) -> dict[int, Any]:
    movers = sorted(game.to_move())
    if movers != sorted(encoded):
        raise _Divergence(number, f"a move of {_seats(sorted(encoded))}", f"{_seats(movers)} to move")
    actions: dict[int, Any] = {}
    for seat, data in encoded.items():
        space = game.action_space(seat)
        try:
            actions[seat] = space.decode_all(data)
            space.encode(actions[seat])  # decoding alone does not look at the bounds of a box
        except spaces.SpaceError as error:
            raise _Divergence(
                number, f"an action of seat {seat} in {len(data)} bytes", f"no such action: {error}"
            ) from None
    return actions


def _game(environment: str, config: dict[str, Any]) -> Game:
    try:
        return registry.make(environment, config)
    except HarenaError as error:
        raise ReplayError(f"the game of this replay cannot be run here: {error}") from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(replay_json.MAX_JSON + 1)  # through a cap: the file may be anybody's
    except OSError as error:
        raise ReplayError(f"cannot read {path}: {error.strerror}") from error
    return data


def _seats(seats: Sequence[int]) -> str:
    if not seats:
        return "nobody"
    return f"seat{'s' if len(seats) > 1 else ''} {', '.join(map(str, seats))}"


def _winner(winner: int | None) -> str:
    return "no winner" if winner is None else f"seat {winner} as the winner"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
