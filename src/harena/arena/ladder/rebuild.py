"""Ratings and the ladder's board made again from the match log alone, and compared with what is stored. Guarantees: a
comparison to the last bit, and a change of the database only when it was asked for. Nobody else may fold meanwhile:
whoever changes something holds the lock of the data folder.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harena.arena.db.ladder.ratings import StoredRating
from harena.arena.db.ladder.standings import BoardStanding
from harena.arena.db.models import BoardKind, TournamentState
from harena.arena.db.records import MAX_PAGE
from harena.arena.db.seasons import SeasonRecord
from harena.arena.db.store import Store
from harena.arena.ladder.fold import FromNothing
from harena.arena.ladder.standings import Standings, ladder_lines
from harena.arena.seasons.service import final_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    env_id: str
    season_id: int
    matches: int
    """Rated ones, with a result."""
    behind: int
    """How many of these matches, at the end, the stored ratings do not include yet. The next start includes them."""
    rating: str
    """The first stored rating that is another, in words; empty: none is."""
    line: str
    """The first line of the board that is another; empty: none is, or the board had not been fitted to the last matches
    when the process ended: the next start does that."""

    @property
    def same(self) -> bool:
        return not self.rating and not self.line


def rebuild(store: Store, env_id: str, season_id: int, *, check: bool = False) -> Rebuilt:
    """Compute all ratings again from the log. If `check` is set, nothing is changed."""
    with store.begin():
        season = store.seasons.get(season_id)
        fold = FromNothing(store, env_id, season_id)
        stored = store.ratings.all(env_id, season_id=season_id)
        standings = Standings(store)
        board = _board(standings, season)
        lines = _lines(store, season, fold, board)
        followed = {one.match_number for one in stored}
        made = [one for one in fold.history if one.match_number in followed]
        behind = len({one.match_number for one in fold.history} - followed)
        unfitted = season.ended_at is None and _games(board) < _games(lines)
        found = Rebuilt(
            env_id=env_id,
            season_id=season_id,
            matches=len(fold.log),
            behind=behind,
            rating=_first_rating(stored, made),
            line="" if behind or unfitted else _first_line(board, lines),
        )
        if not check and (behind or unfitted or not found.same):
            store.ratings.replace(env_id, fold.history, season_id=season_id)
            standings.replace(env_id, season_id, BoardKind.LADDER, lines)
        return found


def _games(lines: Sequence[BoardStanding]) -> int:
    return sum(line.games for line in lines)


def _lines(
    store: Store, season: SeasonRecord, fold: FromNothing, board: Sequence[BoardStanding]
) -> list[BoardStanding]:
    if season.ended_at is None:
        return ladder_lines(fold, store.roster.live(season.id))
    # Who was on it when the season ended: some may be deleted since.
    listed = store.roster.agents([line.submission_id for line in board])
    return final_lines(fold, list(listed.values()), store.tournaments.finals_of(season.id, TournamentState.FINISHED))


def _board(standings: Standings, season: SeasonRecord) -> list[BoardStanding]:
    lines: list[BoardStanding] = []
    while page := standings.standings(season.env_id, season_id=season.id, limit=MAX_PAGE, offset=len(lines)):
        lines += page
    return lines


def _first_rating(stored: Sequence[StoredRating], made: Sequence[StoredRating]) -> str:
    for one, other in itertools.zip_longest(stored, made):
        if _numbers(one) != _numbers(other):
            number = min(rating.match_number for rating in (one, other) if rating is not None)
            return f"after match {number}: stored {_words(one)}, by the log {_words(other)}"
    return ""


def _numbers(rating: StoredRating | None) -> tuple[int, str, float, float] | None:
    return None if rating is None else (rating.match_number, rating.submission_id, rating.mu, rating.sigma)


def _words(rating: StoredRating | None) -> str:
    return "nothing" if rating is None else f"{rating.mu!r} ± {rating.sigma!r} for {rating.submission_id}"


def _first_line(stored: Sequence[BoardStanding], made: Sequence[BoardStanding]) -> str:
    for place, (one, other) in enumerate(itertools.zip_longest(map(_plain, stored), map(_plain, made)), 1):
        if one != other:
            words = [f"{line.score!r} for {line.submission_id}" if line else "nobody" for line in (one, other)]
            return f"place {place}: stored {words[0]}, by the log {words[1]}"
    return ""


def _plain(line: BoardStanding) -> BoardStanding:
    """Return the line without the fields that do not follow from the log."""
    return replace(line, anonymous=False, benched=False, provisional=False)
