from __future__ import annotations

import pytest

from harena.arena.db.models import Conflict, KeyRefused, Scope
from harena.arena.db.seasons import SeasonRecord
from support.entries import ENV, submit

# ---- keys ----


def test_a_key_opens_what_its_scopes_say(store):
    key, token = store.keys.create("ann", [Scope.READ, Scope.SUBMIT], label="laptop")
    assert store.keys.authenticate(token, Scope.SUBMIT) == key
    assert key.owner == "ann"
    with pytest.raises(KeyRefused, match="lacks the scope"):
        store.keys.authenticate(token, Scope.HOST)
    _, admin = store.keys.create("root", [Scope.ADMIN])
    assert all(store.keys.authenticate(admin, scope) for scope in Scope)
    assert store.keys.of("ann") == [key]


def test_the_database_has_no_token(store, tmp_path):
    _, token = store.keys.create("ann", [Scope.READ])
    store.close()
    secret = token.split("_", 2)[2].encode()  # may hold more underscores
    assert len(secret) == 43
    assert not any(secret in path.read_bytes() for path in tmp_path.iterdir())


def test_an_expired_revoked_or_forged_token_is_refused_in_the_same_words(store, clock):
    _, expired = store.keys.create("ann", [Scope.READ], lifetime_s=10)
    revoked_key, revoked = store.keys.create("ann", [Scope.READ])
    _, good = store.keys.create("ann", [Scope.READ])
    store.keys.authenticate(expired, Scope.READ)
    store.keys.revoke(revoked_key.id)
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
            store.keys.authenticate(token, Scope.READ)
        said.add(str(caught.value))
    assert said == {"the API key is unknown, expired or revoked"}
    store.keys.authenticate(good, Scope.READ)


def test_rotation_ends_the_old_token_after_its_grace(store, clock):
    key, old = store.keys.create("ann", [Scope.SUBMIT], label="ci")
    fresh, new = store.keys.rotate(key.id, grace_s=60)
    assert (fresh.owner, fresh.scopes, fresh.label) == ("ann", key.scopes, "ci")
    store.keys.authenticate(old, Scope.SUBMIT)
    clock.now += 60
    with pytest.raises(KeyRefused):
        store.keys.authenticate(old, Scope.SUBMIT)
    store.keys.authenticate(new, Scope.SUBMIT)
    with pytest.raises(KeyRefused, match="cannot be rotated"):
        store.keys.rotate(key.id)


def test_an_unknown_scope_makes_no_key(store):
    with pytest.raises(ValueError):
        store.keys.create("ann", ["root"])
    assert store.keys.of("ann") == []


# ---- seasons ----


def test_a_seasons_secret_is_hidden_until_it_ends(store):
    season = store.seasons.start(ENV, "spring")
    assert not any(isinstance(getattr(season, name), bytes) for name in SeasonRecord.__slots__)
    assert len(store.seasons.secret(season.id)) == 32
    assert store.seasons.revealed_secret(season.id) is None
    assert submit(store).season_id == season.id
    with pytest.raises(Conflict, match="end it first"):
        store.seasons.start(ENV, "summer")
    store.seasons.freeze(season.id)
    with pytest.raises(Conflict, match="frozen"):
        submit(store)
    store.seasons.end(season.id)
    assert store.seasons.revealed_secret(season.id) == store.seasons.secret(season.id)
    with pytest.raises(Conflict, match="ended"):
        store.seasons.freeze(season.id, frozen=False)
    assert store.seasons.start(ENV, "summer").id > season.id


def test_owners_keys_and_seasons_are_listed(store, clock):
    first, _ = store.keys.create("bob", [Scope.READ])
    clock.now += 1
    second, _ = store.keys.create("ann", [Scope.SUBMIT])
    store.owners.ensure("eve")
    assert [owner.name for owner in store.owners.all()] == ["ann", "bob", "eve"]
    assert [owner.name for owner in store.owners.all(limit=1, offset=1)] == ["bob"]
    newest, oldest = store.keys.all()
    assert (newest, oldest) == (second, first)
    store.keys.revoke(first.id)
    one = store.seasons.start(ENV, "one")
    store.seasons.end(one.id)
    two = store.seasons.start(ENV, "two")
    assert (
        [season.id for season in store.seasons.all(ENV)]
        == [season.id for season in store.seasons.all()]
        == [two.id, one.id]
    )
    assert store.seasons.all("elsewhere") == []
