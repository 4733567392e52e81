"""`harena match`: plays one game, a series or a tournament and prints a table or JSON. Guarantees: all arguments are
checked before anything is played; Ctrl-C ends the boxes and keeps the finished games.

One file: what is printed follows from the plan and from what was kept.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import queue
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harena import terminal
from harena.command import print_json
from harena.errors import SpecError
from harena.match import registry
from harena.match.agent import image
from harena.match.cli import commands as cli
from harena.match.cli.replay import checked_fps
from harena.match.game import Game
from harena.match.replay.replay import Replay
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus, SeatStatus
from harena.match.run import play
from harena.match.series import tournament
from harena.match.series.contest import Contest, Finished, Play, TableRow, ahead, lockstep
from harena.match.series.schedule import Pairing, Schedule
from harena.statistics import Comparison, Interval

TROUBLES = 10
"""Maximum number of problems that are listed."""
CLOCKS = {"move": "move_s", "bank": "bank_s", "start": "start_s", "match_time": "match_s"}
BATCH = 256
"""Lockstep games at once. More would gain little, and an agent that crashes loses all of them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The parsed and checked command."""

    args: argparse.Namespace
    game: Game
    codes: tuple[AgentCode, ...]
    seed: int
    schedule: Schedule
    clock: Clock
    config: dict[str, Any]

    @property
    def names(self) -> list[str]:
        return [code.name for code in self.codes]

    @property
    def single(self) -> bool:
        return self.schedule.expected == 1 and not (self.args.tournament or self.args.lockstep)

    def spec(self, pairing: Pairing) -> MatchSpec:
        args = self.args
        return MatchSpec(
            environment=self.game.id,
            agents=tuple(self.codes[agent] for agent in pairing.seats),
            seed=pairing.seed,
            clock=self.clock,
            config=self.config,
            keep=args.games > 1 and not args.tournament and not args.fresh,
            record=bool(args.replay or args.html or (args.watch and self.game.hidden)),
            **({} if args.memory is None else {"memory_mb": args.memory}),
        )


def match(args: argparse.Namespace) -> int:
    plan = _plan(args)
    contest = Contest(plan.schedule, plan.spec)
    keeper = _Keeper(plan)
    interrupted = False
    try:
        bar = terminal.Progress("playing", 0 if args.watch else plan.schedule.expected)
        with _player(plan) as player, bar as progress:
            contest.run(player, progress=progress, finished=keeper.keep)
    except KeyboardInterrupt:
        interrupted = True
    if args.json:
        if contest.games or not plan.single:
            print_json(_as_json(plan, contest, keeper, interrupted))
    elif plan.single:
        _print_game(plan, contest, keeper)
    else:
        _print_table(plan, contest, keeper, interrupted)
    return cli.INTERRUPTED if interrupted else _exit_code(plan, contest)


def _exit_code(plan: Plan, contest: Contest) -> int:
    if plan.schedule.no_result:
        return cli.PLATFORM
    return cli.TIMEOUT if plan.single and contest.games[-1].result.status is MatchStatus.TIMEOUT else cli.OK


# ---- understanding the arguments ----


def _plan(args: argparse.Namespace) -> Plan:
    checked_fps(args.fps)
    registry.trust(args.env)
    config = _settings(args.settings)
    game = registry.make(args.env, config)
    _check_counts(args, game)
    for seat in args.log:
        if not 0 <= seat < len(args.agents):
            raise SpecError(f"--log {seat}: agents are numbered from 0 to {len(args.agents) - 1}")
    for path in (args.replay, args.html):
        _check_writable(path)
    names = distinct_names(args.agents)
    codes = tuple(image.load_any(path, name=name) for path, name in zip(args.agents, names, strict=True))
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    clock = Clock(**{CLOCKS[name]: getattr(args, name) for name in CLOCKS if getattr(args, name) is not None})
    return Plan(args, game, codes, seed, _schedule(args, game.seats, seed), clock, config)


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """Parse KEY=VALUE words. A value that is not valid JSON is text."""
    config: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise SpecError(f"--set {word}: give it as KEY=VALUE")
        try:
            config[key] = json.loads(value)
        except ValueError:
            config[key] = value
    return config


def _check_counts(args: argparse.Namespace, game: Game) -> None:
    count, seats = len(args.agents), game.seats
    given = f"{game.id} has {seats} seat{'s' * (seats != 1)}; {count} agent{'s were' if count != 1 else ' was'} given"
    if args.games < 1:
        raise SpecError(f"--games {args.games}: must be at least 1")
    if args.workers is not None and args.workers < 1:
        raise SpecError(f"--workers {args.workers}: must be at least 1")
    if args.rounds is not None and args.tournament != "swiss":
        raise SpecError("--rounds only works with --tournament swiss")
    if args.lockstep and args.watch:
        raise SpecError("--lockstep plays many games at once and cannot be combined with --watch")
    if args.tournament is None:
        if count > seats:
            raise SpecError(f"{given}: leave some out, or play them all with --tournament round-robin")
        if count < seats:
            raise SpecError(f"{given}: give {seats}; you may name the same agent several times")
    elif args.tournament == "round-robin":
        if count < seats:
            raise SpecError(f"{given}: a round robin needs at least {seats}")
    elif seats != 2:
        raise SpecError(f"{args.tournament} needs a game with 2 seats; {game.id} has {seats}: use round-robin")
    elif count < 2:
        raise SpecError(f"{given}: a tournament needs at least 2")


def _check_writable(path: str | None) -> None:
    if path is not None and (not Path(path).name or not Path(path).parent.is_dir() or Path(path).is_dir()):
        raise SpecError(f"cannot write {path}: its folder does not exist, or it is itself a folder")


def _schedule(args: argparse.Namespace, seats: int, seed: int) -> Schedule:
    count, games = len(args.agents), args.games
    even = games + games % 2 if args.mirror else games
    match args.tournament:
        case "round-robin":
            pairings = tournament.round_robin(count, games, args.mirror, seed, seats=seats)
            return tournament.Fixed(count, pairings)
        case "swiss":
            return tournament.Swiss(count, args.rounds or math.ceil(math.log2(count)), seed, games=even)
        case "elimination":
            return tournament.SingleElimination(count, seed, even)
        case "double-elimination":
            return tournament.DoubleElimination(count, seed, even)
        case _ if games == 1 and not args.mirror:
            # One game has the seed that was given, so that a replay's seed can be given again.
            return tournament.Fixed(count, [Pairing(seats=tuple(range(count)), seed=seed, round=1, number=0)])
        case _:
            return tournament.Fixed(count, tournament.series(count, games, mirror=args.mirror, seed=seed))


def distinct_names(paths: Sequence[str]) -> list[str]:
    """Shortest distinct names: the file's name, with folders if names are equal, with a number if whole paths are."""
    parts = [(*path.parent.parts, path.stem if path.suffix in (".py", ".zip") else path.name) for path in _full(paths)]
    lengths = [1] * len(parts)
    while True:
        names = ["/".join(part[-length:]).lstrip("/") for part, length in zip(parts, lengths, strict=True)]
        wanted = [
            index
            for index, name in enumerate(names)
            if len({parts[other] for other, same in enumerate(names) if same == name}) > 1
            and lengths[index] < len(parts[index])
        ]
        if not wanted:
            return _numbered(names)
        for index in wanted:
            lengths[index] += 1


def _full(paths: Sequence[str]) -> list[Path]:
    return [Path(os.path.abspath(path)) for path in paths]


def _numbered(names: Sequence[str]) -> list[str]:
    counts, seen = Counter(names), Counter[str]()
    numbered: list[str] = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} #{seen[name]}" if counts[name] > 1 else name)
    return numbered


# ---- playing ----


@contextlib.contextmanager
def _player(plan: Plan) -> Generator[Play]:
    args = plan.args
    if args.watch or plan.single:
        with play.Rack(backend=args.backend) as rack:
            yield _watched(plan, rack) if args.watch else _in_turn(rack)
    else:
        from harena.match.run import runner

        with runner.Runner(workers=args.workers, backend=args.backend) as workers:
            yield lockstep(workers, BATCH) if args.lockstep else ahead(workers, 4 * workers.workers)


def _in_turn(rack: play.Rack) -> Play:
    return lambda specs: (play.play(spec, rack=rack) for spec in specs)


def _watched(plan: Plan, rack: play.Rack) -> Play:
    def games(specs: Iterator[MatchSpec]) -> Iterator[MatchResult]:
        stream = sys.stderr if plan.args.json else sys.stdout
        for spec in specs:
            with terminal.Screen(plan.args.fps, stream=stream) as screen:
                yield _watch(spec, rack, screen)

    return games


def _watch(spec: MatchSpec, rack: play.Rack, screen: terminal.Screen) -> MatchResult:
    """Play in a thread at full speed, so that drawing does not delay the clocks."""
    head = f"{spec.environment}, seed {spec.seed}: {' against '.join(code.name for code in spec.agents)}"
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    stop = threading.Event()
    future: Future[MatchResult] = Future()

    def run() -> None:
        try:
            future.set_result(play.play(spec, rack=rack, on_event=events.put, cancelled=stop.is_set))
        except BaseException as error:
            future.set_exception(error)
        finally:
            events.put(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while (event := events.get()) is not None:
            if "text" in event:
                screen.draw(f"{head}, step {event['step']}", event["text"], _clocks(spec, event["clocks"]))
        result = future.result()
        if spec.record and not result.error and result.replay and registry.make(spec.environment, spec.config).hidden:
            for frame in Replay.load(result.replay).frames():
                screen.draw(f"{head}, step {frame.number}", frame.text)
        return result
    finally:
        stop.set()
        thread.join()


def _clocks(spec: MatchSpec, clocks: Sequence[dict[str, Any]]) -> str:
    rows = [
        (code.name, f"{clock['moves']} moves", f"{clock['cpu_s']:.3f} s")
        for code, clock in zip(spec.agents, clocks, strict=True)
    ]
    return terminal.table(("", " ", "  "), rows, left=("",)).partition("\n")[2]


# ---- keeping ----


class _Keeper:
    """Writes replays and pages as games end, and keeps the logs that were asked for."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._digits = len(str(plan.schedule.expected))
        self.written: list[str] = []
        self.missing: list[int] = []
        """Games without a replay."""
        self.logs: list[tuple[int, int, str]] = []
        """Game, agent, what it printed."""

    def keep(self, game: Finished) -> None:
        args, result = self._plan.args, game.result
        for seat, agent in enumerate(game.pairing.seats):
            if agent in args.log:
                self.logs.append((game.pairing.number, agent, result.seats[seat].log))
        if not (args.replay or args.html):
            return
        if not result.replay:
            self.missing.append(game.pairing.number)
            return
        replay = Replay.load(result.replay)
        if args.replay:
            text = json.dumps(replay.to_json()).encode() if args.replay.endswith(".json") else result.replay
            self._write(args.replay, game, text)
        if args.html:
            from harena.match.replay import viewer

            # The user runs both agents and may read the output of both.
            page = viewer.html(replay, logs=[seat.log for seat in result.seats])
            self._write(args.html, game, page.encode())

    def _write(self, name: str, game: Finished, data: bytes) -> None:
        path = Path(name)
        if not self._plan.single:
            path = path.with_stem(f"{path.stem}-{game.pairing.number + 1:0{self._digits}}")
        try:
            path.write_bytes(data)
        except OSError as error:
            raise SpecError(f"cannot write {path}: {error.strerror}") from None
        self.written.append(str(path))


# ---- what is printed ----


def _as_json(plan: Plan, contest: Contest, keeper: _Keeper, interrupted: bool) -> dict[str, Any]:
    games = [game.as_json() for game in contest.games]
    for number, agent, log in keeper.logs:
        for game, data in zip(contest.games, games, strict=True):
            if game.pairing.number == number:
                next(seat for seat in data["seats"] if seat["index"] == agent)["log"] = log
    if plan.single:
        return {**games[-1], "files": keeper.written}
    rows = contest.rows()
    first = [row.standing.agent for row in rows if row.standing.rank == 1]
    points = {row.standing.agent: row.standing.points for row in rows}
    return {
        "environment": plan.game.id,
        "seed": plan.seed,
        "tournament": plan.args.tournament,
        "agents": plan.names,
        "winner": first[0] if len(first) == 1 and not interrupted else None,
        "scores": [points[agent] for agent in range(len(plan.codes))],
        "steps": sum(game.result.steps for game in contest.games),
        "distinct_games": contest.distinct_games(),
        "games": games,
        "table": [row.as_json(plan.names) for row in rows],
        "comparisons": [comparison.as_json() for comparison in contest.comparisons(seed=plan.seed)],
        "no_result": len(plan.schedule.no_result),
        "notes": _notes(plan),
        "interrupted": interrupted,
        "files": keeper.written,
    }


def _notes(plan: Plan) -> list[str]:
    return [note.format(*plan.names) for note in plan.schedule.notes]


def _print_game(plan: Plan, contest: Contest, keeper: _Keeper) -> None:
    if not contest.games:
        return
    result = contest.games[-1].result
    print(terminal.safe(f"{result.environment}, seed {result.seed}: {headline(result)}"))
    rows = [
        (
            str(number),
            seat.agent,
            seat.status.value,
            f"{seat.score:g}",
            str(seat.moves),
            f"{seat.cpu_s:.3f} s",
            seat.reason,
        )
        for number, seat in enumerate(result.seats)
    ]
    head = ("seat", "agent", "status", "score", "moves", "cpu", "reason")
    print("\n" + terminal.table(head, rows, left=("agent", "status", "reason")))
    _print_kept(plan, keeper)


def headline(result: MatchResult) -> str:
    after = f"after {result.steps} step{'s' * (result.steps != 1)}, {result.wall_s:.2f} s"
    match result.status:
        case MatchStatus.FINISHED if len(result.seats) == 1:
            return f"score {result.scores[0]:g} {after}"
        case MatchStatus.FINISHED:
            why = f" ({result.reason})" if result.reason else ""
            who = "draw" if result.winner is None else f"{result.seats[result.winner].agent} wins"
            return f"{who}{why} {after}"
        case status:
            return f"{status.value}, no result: {result.error or result.reason} {after}"


def _print_table(plan: Plan, contest: Contest, keeper: _Keeper, interrupted: bool) -> None:
    kind = plan.args.tournament or ("mirrored series" if plan.args.mirror else "series")
    count, distinct = len(contest.games), contest.distinct_games()
    games = f"{count} games" + (f", {distinct} distinct" if distinct < contest.counted_games() else "")
    print(f"{plan.game.id}, {kind}, seed {plan.seed}: {games}{', interrupted' if interrupted else ''}")
    rows = contest.rows()
    print("\n" + table_text(rows, plan.names, solo=plan.game.seats == 1, tie_break=plan.args.tournament == "swiss"))
    notes = [*_verdicts(plan, contest), *_repeats(contest), *_notes(plan), *_troubles(contest, plan.names)]
    print("".join(f"\n{terminal.safe(note)}" for note in notes))
    _print_kept(plan, keeper)


def _verdicts(plan: Plan, contest: Contest) -> list[str]:
    """Comparisons of neighbours in the table."""
    order = [row.agent for row in contest.schedule.standings()]
    found = {(verdict.a, verdict.b): verdict for verdict in contest.comparisons(seed=plan.seed)}
    return [verdict_text(found[pair], plan) for pair in itertools.pairwise(order) if found[pair].games]


def _repeats(contest: Contest) -> list[str]:
    count, distinct = contest.counted_games(), contest.distinct_games()
    if distinct == count:
        return []
    games = f"{distinct} of {count} games differ" if distinct > 1 else f"all {count} games are the same game"
    return [f"{games}, the others repeat them move for move; intervals count a repeated game once"]


def verdict_text(verdict: Comparison, plan: Plan) -> str:
    if plan.game.seats == 1:
        return f"{verdict.sentence(plan.names)}, {_interval(verdict.difference)} points a game on the same seeds"
    games = f"{verdict.games} game{'s' * (verdict.games != 1)}"
    return f"{verdict.sentence(plan.names)}, {_interval(verdict.rate)} of the points in {games}"


def table_text(rows: Sequence[TableRow], names: Sequence[str], *, solo: bool = False, tie_break: bool = False) -> str:
    """The table of standings, without empty columns."""
    head = (
        "rank",
        "agent",
        "games",
        "won",
        "drawn",
        "lost",
        "void",
        "byes",
        "points",
        "Buchholz",
        "win rate (95 %)",
        "mean score (95 %)",
        "faults",
        "cpu/move",
    )

    def cells(row: TableRow) -> tuple[str, ...]:
        place = row.standing
        duel = ("",) * 3 if solo else (str(place.wins), str(place.draws), str(place.losses))
        return (
            str(place.rank),
            names[place.agent],
            str(place.games),
            *duel,
            str(place.no_result or ""),
            str(place.byes or ""),
            "" if solo else f"{place.points:g}",
            f"{place.tie_break:g}" if tie_break else "",
            "" if solo else _interval(row.rate),
            _interval(row.score),
            str(row.faults or ""),
            f"{row.cpu_s / row.moves * 1000:.2f} ms" if row.moves else "",
        )

    return terminal.table(head, [cells(row) for row in rows], left=("agent",))


def _interval(interval: Interval) -> str:
    if math.isnan(interval.value):
        return "-"
    if math.isinf(interval.low) or interval.low == interval.high:  # too little is known, or no spread was seen
        return f"{interval.value:.2f}"
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _troubles(contest: Contest, names: Sequence[str]) -> list[str]:
    """List each problem once, with the number of games."""
    found: Counter[str] = Counter()
    for game in contest.games:
        for agent, seat in zip(game.pairing.seats, game.result.seats, strict=True):
            if seat.status is not SeatStatus.OK:
                found[f"{names[agent]}: {seat.status.value}: {seat.reason}"] += 1
        if game.result.status is not MatchStatus.FINISHED:
            found[f"{game.result.status.value}: {game.result.error}"] += 1
    lines = [f"{text} ({count} game{'s' * (count > 1)})" for text, count in found.most_common(TROUBLES)]
    more = len(found) - TROUBLES
    return [*lines, *([f"and {more} other problems; --json lists all of them"] if more > 0 else [])]


def _print_kept(plan: Plan, keeper: _Keeper) -> None:
    for number, agent, log in keeper.logs:
        game = "" if plan.single else f", game {number + 1}"
        print(f"\n--- printed by {terminal.safe(plan.names[agent])}{game}")
        print(terminal.safe_lines(log).rstrip("\n") or "(nothing)")
    if keeper.written:
        more = f" and {len(keeper.written) - 3} more" if len(keeper.written) > 3 else ""
        print(f"\nwritten: {', '.join(keeper.written[:3])}{more}")
    if keeper.missing:
        print(f"harena: {len(keeper.missing)} games have no replay because they were void", file=sys.stderr)
