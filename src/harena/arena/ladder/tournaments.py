"""Tournaments of the arena: `harena.match.series.tournament` says who plays whom, the match log remembers what was
played. Guarantees: the same settings and results give the same tournament, so one that was interrupted carries on where
it was; results count in the order of the schedule; a void game is played again. None of its games moves a rating.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from harena.arena.db.database import log_failure
from harena.arena.db.ladder.matches import MatchRecord
from harena.arena.db.ladder.tournaments import TournamentRecord
from harena.arena.db.models import (
    BoardKind,
    Conflict,
    EnvironmentKind,
    MatchKind,
    MatchState,
    State,
    TournamentState,
    name_text,
)
from harena.arena.db.records import MAX_PAGE
from harena.arena.db.store import Store
from harena.arena.ladder.matches import MatchService
from harena.arena.ladder.standings import Standings
from harena.errors import SpecError
from harena.match import registry
from harena.match.series import tournament
from harena.match.series.driver import Series
from harena.match.series.schedule import Pairing, Schedule

FORMATS = ("round-robin", "swiss", "elimination", "double-elimination")
MAX_PARTICIPANTS = 128
MAX_GAMES = 5000
"""Maximum number of games of a tournament; the result keeps the id of each."""
MAX_GAMES_EACH = 100
AHEAD = 2
"""Games of one tournament that are open, for each that can be played at once."""
TELL_S = 0.5
"""Between two changes of the stored result: a large one takes a while to write."""
_log = logging.getLogger("harena.arena")


class TournamentService:
    def __init__(self, store: Store, standings: Standings, matches: MatchService) -> None:
        self._store = store
        self._standings = standings
        self._matches = matches
        self._under_way: dict[str, _UnderWay] = {}
        self._lock = threading.Lock()

    def create(
        self,
        env_id: str,
        name: str,
        format: str = "round-robin",
        *,
        participants: Sequence[str] | None = None,
        top: int | None = None,
        games: int = 2,
        rounds: int | None = None,
        seed: int | None = None,
        finals: bool = False,
    ) -> TournamentRecord:
        """Create a tournament of these submissions, or of the `top` of the ladder, best seeds first. Without a seed,
        one that nobody can guess. Its games start with the next `advance`."""
        season = self._store.seasons.live(env_id)
        chosen = self._participants(env_id, participants, top)
        default = max(1, (len(chosen) - 1).bit_length())
        settings = {
            "participants": chosen,
            "games": games,
            "rounds": default if rounds is None else rounds,
            "seed": secrets.randbits(63) if seed is None else seed,
        }
        _check(env_id, format, settings)
        tournament_id = uuid.uuid4().hex
        values = {
            "id": tournament_id,
            "env_id": env_id,
            "season_id": season.id if season else None,
            "name": name_text(name, "a tournament's name"),
            "format": format,
            "finals": finals,
            "settings": settings,
            "state": TournamentState.RUNNING,
        }
        with self._store.begin():
            made = self._store.tournaments.add(**values)
            self._tell(made)
            return made

    def get(self, tournament_id: str) -> TournamentRecord:
        return self._store.tournaments.get(tournament_id)

    def list(
        self, *, env_id: str | None = None, season_id: int | None = None, limit: int = 50, hidden: Collection[str] = ()
    ) -> list[TournamentRecord]:
        """Newest first, without those of `hidden` environments."""
        return self._store.tournaments.where(env_id=env_id, season_id=season_id, limit=limit, hidden=hidden)

    def cancel(self, tournament_id: str) -> TournamentRecord:
        """Cancel a tournament and its open games. Games that were played stay."""
        with self._store.begin():
            if self.get(tournament_id).state is not TournamentState.RUNNING:
                raise Conflict("the tournament is over")
            of = self._store.matches.where(tournament_id=tournament_id, state=MatchState.SCHEDULED, limit=1000)
            self._matches.cancel(of, "the tournament was cancelled")
            return self._change(tournament_id, state=TournamentState.CANCELLED, finished_at=self._store.clock())

    def advance(self) -> None:
        """Takes results in and hands games out, in all tournaments that run. Safe to call at any time."""
        with self._lock:
            rows = self._store.tournaments.running()
            for over in self._under_way.keys() - rows.keys():
                del self._under_way[over]
            for tournament_id, row in rows.items():
                try:
                    self._advance(tournament_id, row)
                except Exception as error:  # the others go on
                    self._under_way.pop(tournament_id, None)
                    log_failure(_log, f"tournament {tournament_id} could not go on and will try again", error)

    # ---- parts ----

    def _advance(self, tournament_id: str, row: Mapping[str, Any]) -> None:
        if tournament_id not in self._under_way:
            self._under_way[tournament_id] = self._take_up(row)
        under_way = self._under_way[tournament_id]
        try:
            with self._store.begin():
                if self.get(tournament_id).state is TournamentState.RUNNING:
                    self._step(tournament_id, row, under_way)
        except BaseException:
            self._under_way.pop(tournament_id, None)  # it may be ahead of the database
            raise

    def _step(self, tournament_id: str, row: Mapping[str, Any], under_way: _UnderWay) -> None:
        for match_id in under_way.outstanding:
            match = self._store.matches.get(match_id)
            if match.state is not MatchState.SCHEDULED:
                under_way.ended(match)
        while not under_way.over and (todo := under_way.todo(AHEAD * self._matches.at_once)):
            for pairing in todo:
                match = self._matches.create(
                    row["env_id"],
                    [row["settings"]["participants"][agent] for agent in pairing.seats],
                    kind=MatchKind.TOURNAMENT,
                    season_id=row["season_id"],
                    seed=pairing.seed,
                    tournament_id=tournament_id,
                    pairing=pairing.number,
                )
                under_way.made(pairing, match)
        if under_way.over:
            self._change(
                tournament_id,
                state=TournamentState.FINISHED,
                result=under_way.result(),
                finished_at=self._store.clock(),
            )
        elif under_way.news and time.monotonic() - under_way.told_at > TELL_S:
            under_way.told_at = time.monotonic()
            self._change(tournament_id, result=under_way.result())

    def _take_up(self, row: Mapping[str, Any]) -> _UnderWay:
        """Restore a tournament under way from the match log."""
        under_way = _UnderWay(_schedule(row["env_id"], row["format"], row["settings"]))
        made: defaultdict[int, list[MatchRecord]] = defaultdict(list)
        before: int | None = None
        while page := self._store.matches.where(tournament_id=row["id"], before=before, limit=1000):
            before = page[-1].number
            for match in page:
                made[match.pairing or 0].insert(0, match)
        under_way.replay(made)
        return under_way

    def _participants(self, env_id: str, participants: Sequence[str] | None, top: int | None) -> list[str]:
        environment = self._store.environments.get(env_id)
        if environment.kind is not EnvironmentKind.LADDER:
            raise SpecError(f"{env_id} has no ladder: tournaments are for games with opponents")
        if (participants is None) is (top is None):
            raise SpecError("a tournament is of chosen participants, or of the top of the ladder: say one of them")
        if top is not None:
            if not 2 <= top <= MAX_PARTICIPANTS:
                raise SpecError(f"top={top}: from 2 to {MAX_PARTICIPANTS}")
            best = self._standings.standings(env_id, board=BoardKind.LADDER, limit=MAX_PAGE)
            return [line.submission_id for line in best if not line.benched][:top]
        chosen = list(participants or ())
        if len(chosen) > MAX_PARTICIPANTS:
            raise SpecError(f"{len(chosen)} participants: at most {MAX_PARTICIPANTS}")
        if len(set(chosen)) < len(chosen):
            raise SpecError("a participant is named twice")
        for submission_id in chosen:
            submission = self._store.submissions.get(submission_id)
            if submission.env_id != env_id or submission.state is not State.RANKED or submission.deleted_at is not None:
                raise SpecError(f"submission {submission_id} is not on the ladder of {env_id}")
        return chosen

    def _change(self, tournament_id: str, **values: Any) -> TournamentRecord:
        with self._store.begin():
            changed = self._store.tournaments.change(tournament_id, **values)
            self._tell(changed)
            return changed

    def _tell(self, of: TournamentRecord) -> None:
        body = {"id": of.id, "env_id": of.env_id, "state": of.state.value}
        self._store.events.publish(f"tournament:{of.id}", "tournament", body)


class _UnderWay:
    """A series and the matches made of it, some of them in other processes."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.news = False
        """Whether the result is another than when it was last asked for."""
        self.told_at = -TELL_S
        self._series = Series(schedule, _report)
        self._of: dict[str, Pairing] = {}
        """Pairings of open matches, by match."""
        self._made: dict[Pairing, str] = {}
        self._ties: dict[int, list[Pairing]] = {}

    @property
    def over(self) -> bool:
        return self._series.over

    @property
    def outstanding(self) -> list[str]:
        return list(self._of)

    def todo(self, window: int) -> list[Pairing]:
        """The games to make now, so that `window` are open; also ends the round when all of it is reported."""
        return self._series.todo(max(0, window - len(self._of)))

    def made(self, pairing: Pairing, match: MatchRecord) -> None:
        self._of[match.id] = pairing
        self._made[pairing] = match.id
        self._ties.setdefault(pairing.tie, []).append(pairing)
        self._series.begun(pairing)
        self.news = True

    def ended(self, match: MatchRecord) -> None:
        self.news = True
        self._series.ended(self._of.pop(match.id), match)

    def replay(self, made: dict[int, list[MatchRecord]]) -> None:
        """Takes in all that was made before, by the number of its pairing and then by attempt."""
        while not self.over:
            todo = self.todo(len(self._of) + 1)
            if not todo:
                break
            pairing = todo[0]
            attempts = made.get(pairing.number, [])
            if pairing.attempt >= len(attempts):
                break
            match = attempts[pairing.attempt]
            self.made(pairing, match)
            if match.state is not MatchState.SCHEDULED:
                self.ended(match)

    def result(self) -> dict[str, Any]:
        self.news = False
        return {
            "rounds": self._rounds(),
            "standings": [
                {
                    "agent": row.agent,
                    "rank": row.rank,
                    "points": row.points,
                    "wins": row.wins,
                    "draws": row.draws,
                    "losses": row.losses,
                    "byes": row.byes,
                }
                for row in self.schedule.standings()
            ],
            "notes": [_note(note) for note in self.schedule.notes],
        }

    def _rounds(self) -> list[dict[str, Any]]:
        """Return the rounds: of a bracket by stage, because a tie may be decided later than the others of its
        stage, and otherwise in the order of play."""
        points: defaultdict[int, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
        for game in self.schedule.played:
            for agent, point in zip(game.pairing.seats, game.points, strict=True):
                points[game.pairing.tie][agent] += point
        if isinstance(self.schedule, tournament.Elimination):
            return self._stages(self.schedule, points)
        rounds: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        still_open = {pairing.tie for pairing in self._series.unreported}
        for tie, pairings in self._ties.items():
            agents = sorted(pairings[0].seats)
            scores = [points[tie][agent] for agent in agents]
            best = max(scores)
            decided = tie not in still_open and scores.count(best) == 1
            winner = agents[scores.index(best)] if decided else None
            rounds[pairings[0].round].append(self._tie(tie, agents, scores, winner))
        return [{"number": number, "ties": rounds[number]} for number in sorted(rounds)]

    def _stages(
        self, bracket: tournament.Elimination, points: defaultdict[int, defaultdict[int, float]]
    ) -> list[dict[str, Any]]:
        stages: dict[str, list[dict[str, Any]]] = {}
        for number, tie in enumerate(bracket.ties):
            stage = stages.setdefault(tie.stage, [])
            agents = [agent for agent in tie.players if agent != tournament.BYE]
            if number in self._ties or len(agents) == 1:  # one alone has a bye
                scores = [points[number][agent] for agent in agents]
                stage.append(self._tie(number, agents, scores, tie.winner))
        shown = [(stage, ties) for stage, ties in stages.items() if ties]
        return [{"number": number, "name": stage, "ties": ties} for number, (stage, ties) in enumerate(shown, 1)]

    def _tie(self, tie: int, agents: list[int], scores: list[float], winner: int | None) -> dict[str, Any]:
        played = [self._made[pairing] for pairing in self._ties.get(tie, [])]
        return {"agents": agents, "matches": played, "scores": scores, "winner": winner}


def _report(schedule: Schedule, pairing: Pairing, match: MatchRecord) -> None:
    if match.state is MatchState.FINISHED:
        schedule.report(pairing, scores=[seat.score or 0.0 for seat in match.seats], winner=match.winner)
    elif match.state is MatchState.TIMEOUT:
        schedule.report(pairing)  # nobody was to blame alone: a draw
    else:
        schedule.report(pairing, void=True)


def _schedule(env_id: str, format: str, settings: dict[str, Any]) -> Schedule:
    n, games, seed = len(settings["participants"]), settings["games"], settings["seed"]
    if format == "swiss":
        return tournament.Swiss(n, settings["rounds"], seed, games=games)
    if format == "elimination":
        return tournament.SingleElimination(n, seed, games)
    if format == "double-elimination":
        return tournament.DoubleElimination(n, seed, games)
    seats = registry.make(env_id).seats
    return tournament.Fixed(n, tournament.round_robin(n, games, True, seed, seats=seats))


def _check(env_id: str, format: str, settings: dict[str, Any]) -> None:
    """Before anything is stored."""
    n, games, rounds = len(settings["participants"]), settings["games"], settings["rounds"]
    seats = registry.make(env_id).seats
    if format not in FORMATS:
        raise SpecError(f"a tournament's format is one of {', '.join(FORMATS)}")
    if n < max(2, seats):
        raise SpecError(f"{n} participants: {env_id} needs at least {max(2, seats)}")
    if format != "round-robin" and seats != 2:
        raise SpecError(f"{env_id} has {seats} seats: only a round robin is played there")
    if not 1 <= games <= MAX_GAMES_EACH or not 1 <= rounds <= MAX_PARTICIPANTS:
        raise SpecError(f"games from 1 to {MAX_GAMES_EACH}, rounds from 1 to {MAX_PARTICIPANTS}")
    if not 0 <= settings["seed"] < 1 << 63:
        raise SpecError("a seed has 63 bits and no sign")
    expected = _schedule(env_id, format, settings).expected
    if expected > MAX_GAMES:
        raise SpecError(f"{expected} games: at most {MAX_GAMES}; take fewer participants or games")


def _note(note: str) -> str:
    """Agents by their index: who reads the result knows whose it is."""
    return note.replace("{", "agent ").replace("}", "")
