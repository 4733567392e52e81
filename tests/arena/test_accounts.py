from __future__ import annotations

import pytest
from entries import ENV, submit

from harena.arena.db import accounts
from harena.arena.db.models import Conflict, KeyRefused, Scope

# ---- keys ----


def test_a_key_opens_what_its_scopes_say(store):
    key, token = store.create_key("ann", [Scope.READ, Scope.SUBMIT], label="laptop")
    assert store.authenticate(token, Scope.SUBMIT) == key
    assert key.owner == "ann"
    with pytest.raises(KeyRefused, match="lacks the scope"):
        store.authenticate(token, Scope.HOST)
    _, admin = store.create_key("root", [Scope.ADMIN])
    assert all(store.authenticate(admin, scope) for scope in Scope)
    assert store.keys_of("ann") == [key]


def test_the_database_has_no_token(store, tmp_path):
    _, token = store.create_key("ann", [Scope.READ])
    store.close()
    secret = token.rsplit("_", 1)[-1].encode()
    assert len(token.split("_", 2)[2]) == 43
    assert not any(secret in path.read_bytes() for path in tmp_path.iterdir())


def test_an_expired_revoked_or_forged_token_is_refused_in_the_same_words(store, clock):
    _, expired = store.create_key("ann", [Scope.READ], lifetime_s=10)
    revoked_key, revoked = store.create_key("ann", [Scope.READ])
    _, good = store.create_key("ann", [Scope.READ])
    store.authenticate(expired, Scope.READ)
    store.revoke_key(revoked_key.id)
    clock.now += 10
    forged = good[:-1] + ("A" if good[-1] != "A" else "B")
    said = set()
    for token in (
        expired,
        revoked,
        forged,
        "",
        "hrn",
        "hrn__",
        "x" * 10_000,
        "hrn_' OR 1=1_x",
        "hrn_\ud800_x",
        good.replace("hrn", "hrm"),
    ):
        with pytest.raises(KeyRefused) as caught:
            store.authenticate(token, Scope.READ)
        said.add(str(caught.value))
    assert said == {"the API key is unknown, expired or revoked"}
    store.authenticate(good, Scope.READ)


def test_rotation_ends_the_old_token_after_its_grace(store, clock):
    key, old = store.create_key("ann", [Scope.SUBMIT], label="ci")
    fresh, new = store.rotate_key(key.id, grace_s=60)
    assert (fresh.owner, fresh.scopes, fresh.label) == ("ann", key.scopes, "ci")
    store.authenticate(old, Scope.SUBMIT)
    clock.now += 60
    with pytest.raises(KeyRefused):
        store.authenticate(old, Scope.SUBMIT)
    store.authenticate(new, Scope.SUBMIT)
    with pytest.raises(KeyRefused, match="cannot be rotated"):
        store.rotate_key(key.id)


def test_an_unknown_scope_makes_no_key(store):
    with pytest.raises(ValueError):
        store.create_key("ann", ["root"])
    assert store.keys_of("ann") == []


# ---- seasons ----


def test_a_seasons_secret_is_hidden_until_it_ends(store):
    season = store.start_season(ENV, "spring")
    assert not any(isinstance(getattr(season, name), bytes) for name in accounts.Season.__slots__)
    assert len(store.season_secret(season.id)) == 32
    assert store.revealed_secret(season.id) is None
    assert submit(store).season_id == season.id
    with pytest.raises(Conflict, match="end it first"):
        store.start_season(ENV, "summer")
    store.freeze_season(season.id)
    with pytest.raises(Conflict, match="frozen"):
        submit(store)
    store.end_season(season.id)
    assert store.revealed_secret(season.id) == store.season_secret(season.id)
    with pytest.raises(Conflict, match="ended"):
        store.freeze_season(season.id, frozen=False)
    assert store.start_season(ENV, "summer").id > season.id


def test_owners_keys_and_seasons_are_listed(store, clock):
    first, _ = store.create_key("bob", [Scope.READ])
    clock.now += 1
    second, _ = store.create_key("ann", [Scope.SUBMIT])
    store.owner("eve")
    assert [owner.name for owner in store.owners()] == ["ann", "bob", "eve"]
    assert [owner.name for owner in store.owners(limit=1, offset=1)] == ["bob"]
    newest, oldest = store.keys()
    assert (newest, oldest) == (second, first)
    store.revoke_key(first.id)
    assert [store.has_key(name) for name in ("ann", "bob", "eve", "nobody")] == [True, True, False, False]
    one = store.start_season(ENV, "one")
    store.end_season(one.id)
    two = store.start_season(ENV, "two")
    assert [season.id for season in store.seasons(ENV)] == [season.id for season in store.seasons()] == [two.id, one.id]
    assert store.seasons("elsewhere") == []
