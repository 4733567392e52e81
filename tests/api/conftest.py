"""A real arena in a folder of its own, behind the app. No worker runs unless a test asks for `playing`: what is submitted
then stays in the queue, and results are put there through the store, as a worker would."""

from __future__ import annotations

import itertools

import pytest
from starlette.testclient import TestClient

from harena.access import Rate
from harena.api.app import create_app
from harena.arena.arena import Arena
from harena.arena.db.models import Scope
from harena.arena.db.records import DefaultQuota
from harena.arena.settings import Settings
from harena.http.limits import RequestLimits
from support.served import ENV, LADDER, Server


@pytest.fixture(scope="session")
def new_arena(tmp_path_factory):
    """Makes arenas with a hub that runs; all are stopped in the end."""
    made = []

    def make(**more):
        folder = tmp_path_factory.mktemp("arena")
        values = {"anonymous_submit": True, "workers": 1, "quota": DefaultQuota(per_day=None, at_once=None), **more}
        arena = Arena(
            Settings(
                data=folder, database_url=f"sqlite:///{folder}/arena.db", secret_key=b"only for tests " * 3, **values
            )
        )
        made.append(arena)
        arena.put_environment(ENV)
        arena.put_environment(LADDER)
        return arena

    yield make
    for arena in made:
        arena.stop(grace_s=0.5)


@pytest.fixture(scope="session")
def arena(new_arena):
    arena = new_arena()
    arena.hub.start()
    return arena


@pytest.fixture(scope="session")
def app(arena):
    limits = RequestLimits(login=Rate(per_s=1000, burst=1000))
    return create_app(arena, loopback=False, allowed_hosts=["testserver"], limits=limits)


@pytest.fixture
def client(app):
    client = TestClient(app, client=("127.0.0.1", 50000))
    yield client
    client.close()


@pytest.fixture(scope="session")
def server(app):
    with Server(app) as server:
        yield server


@pytest.fixture(scope="session")
def playing(new_arena):
    """A server whose workers run: what is submitted is evaluated."""
    arena = new_arena()
    arena.put_environment(LADDER, settings={"games_target": 2, "upkeep_s": 3600.0})
    arena.start()
    with Server(create_app(arena, loopback=True)) as server:
        server.arena = arena
        yield server


_names = itertools.count()


@pytest.fixture
def new_key(arena):
    """Makes keys: of a new owner, unless one is named. Returns the owner and the token."""

    def make(*scopes, owner=None, lifetime_s=None):
        owner = owner or f"owner{next(_names)}"
        chosen = scopes or (Scope.READ, Scope.SUBMIT)
        return owner, arena.store.keys.create(owner, chosen, lifetime_s=lifetime_s)[1]

    return make


@pytest.fixture
def host(new_key):
    return new_key(Scope.READ, Scope.SUBMIT, Scope.HOST)[1]


@pytest.fixture
def admin(new_key):
    return new_key(Scope.ADMIN)[1]
