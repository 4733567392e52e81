"""The verbs as methods, for both clients at once: a verb of ArenaClient returns its answer, the same verb of
AsyncArenaClient is awaited for it. What each does, and with which arguments, is in `calls`.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from harena.client import account_calls, calls
from harena.client.calls import Call

if TYPE_CHECKING:
    from harena.client.aio import AsyncArenaClient
    from harena.client.blocking import ArenaClient

P = ParamSpec("P")
T = TypeVar("T")


class Verb(Generic[P, T]):
    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Callable[P, Call[T]]: ...
    @overload
    def __get__(self, client: ArenaClient, owner: type[Any]) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncArenaClient, owner: type[Any]) -> Callable[P, Awaitable[T]]: ...

    def __get__(self, client: ArenaClient | AsyncArenaClient | None, owner: type[Any]) -> Callable[P, Any]:
        if client is None:
            return self._make  # with its documentation, for help()
        perform, make = client.perform, self._make

        @functools.wraps(make)
        def verb(*args: P.args, **kwargs: P.kwargs) -> Any:
            return perform(lambda: make(*args, **kwargs))

        return verb


class Verbs:
    about = Verb(calls.about)
    me = Verb(calls.me)
    health = Verb(calls.health)
    environments = Verb(calls.environments)
    environment = Verb(calls.environment)

    submit = Verb(calls.submit)
    submissions = Verb(calls.submissions)
    status = Verb(calls.status)
    logs = Verb(calls.logs)
    code = Verb(calls.code)
    cancel = Verb(calls.cancel)
    reevaluate = Verb(calls.reevaluate)
    delete = Verb(calls.delete)
    ratings = Verb(calls.ratings)
    opponents = Verb(calls.opponents)
    episodes = Verb(calls.episodes)
    episode = Verb(calls.episode)
    practice = Verb(calls.practice)
    practice_replay = Verb(calls.practice_replay)
    choose_finalist = Verb(calls.choose_finalist)
    agent = Verb(calls.agent)

    leaderboard = Verb(calls.leaderboard)
    matches = Verb(calls.matches)
    match = Verb(calls.match)
    replay = Verb(calls.replay)
    match_log = Verb(calls.match_log)
    challenge = Verb(calls.challenge)

    seasons = Verb(calls.seasons)
    season = Verb(calls.season)
    start_season = Verb(calls.start_season)
    freeze_season = Verb(calls.freeze_season)
    season_finals = Verb(calls.season_finals)
    evaluate_finalists = Verb(calls.evaluate_finalists)
    end_season = Verb(calls.end_season)
    tournaments = Verb(calls.tournaments)
    tournament = Verb(calls.tournament)
    create_tournament = Verb(calls.create_tournament)
    cancel_tournament = Verb(calls.cancel_tournament)

    keys = Verb(calls.keys)
    create_key = Verb(calls.create_key)
    rotate_key = Verb(calls.rotate_key)
    revoke_key = Verb(calls.revoke_key)
    export = Verb(calls.export)

    teams = Verb(account_calls.teams)
    create_team = Verb(account_calls.create_team)
    invite = Verb(account_calls.invite)
    join_team = Verb(account_calls.join_team)
    leave_team = Verb(account_calls.leave_team)
    hooks = Verb(account_calls.hooks)
    add_webhook = Verb(account_calls.add_webhook)
    remove_hook = Verb(account_calls.remove_hook)
    try_webhook = Verb(account_calls.try_webhook)
    hook_deliveries = Verb(account_calls.hook_deliveries)

    queue = Verb(calls.queue)
    revive_job = Verb(calls.revive_job)
    cancel_job = Verb(calls.cancel_job)
    benched = Verb(calls.benched)
    bench = Verb(calls.bench)
    unbench = Verb(calls.unbench)
    put_environment = Verb(calls.put_environment)
    owners = Verb(calls.owners)
    set_quota = Verb(calls.set_quota)
