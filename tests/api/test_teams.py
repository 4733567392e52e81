"""A team is an owner that its members act for: its quota, finalists and rows are theirs together."""

from __future__ import annotations

import pytest

from harena.arena.db.models import Access, Conflict, QuotaExceeded, Scope
from harena.arena.db.records import DefaultQuota
from support.served import ENV, LADDER, bearer, ranked, submitted, upload


@pytest.fixture
def team(client, new_key):
    """A team with its captain, a member and somebody who is invited; their tokens, by name."""
    people = dict(new_key() for _ in range(4))
    captain, member, invited, stranger = people
    name = f"team of {captain}"
    assert client.post("/v1/teams", json={"name": name}, headers=bearer(people[captain])).status_code == 201
    for one in (member, invited):
        answer = client.post(f"/v1/teams/{name}/invite", json={"owner": one}, headers=bearer(people[captain]))
        assert answer.status_code == 200, answer.text
    assert client.post(f"/v1/teams/{name}/join", headers=bearer(people[member])).status_code == 200
    return name, people, (captain, member, invited, stranger)


def test_members_share_the_row_the_code_and_the_choice_of_finalists(arena, client, team):
    name, people, (captain, member, invited, stranger) = team
    of = ranked(arena, client, people[member], score=7.0, user_id=name, algorithm="Together")
    board = client.get(f"/v1/boards?env_id={ENV}&user={name}").json()["entries"]
    assert [(entry["owner"], entry["algorithm"]) for entry in board] == [(name, "Together")]
    for who, sees in ((captain, True), (member, True), (invited, False), (stranger, False)):
        headers = bearer(people[who])
        assert client.get(f"/v1/submissions/{of}", headers=headers).json()["mine"] is sees
        assert client.get(f"/v1/submissions/{of}/code", headers=headers).status_code == (200 if sees else 403)
    chosen = client.post(f"/v1/submissions/{of}/finalist", json={"chosen": True}, headers=bearer(people[captain]))
    assert chosen.json()["finalist"] is True
    assert client.get(f"/v1/submissions/{of}", headers=bearer(people[member])).json()["finalist"] is True


@pytest.mark.parametrize("who", [2, 3])
def test_only_members_send_for_a_team(client, team, who):
    name, people, names = team
    answer = upload(client, people[names[who]], user_id=name)
    assert (answer.status_code, answer.json()["code"]) == (403, "not_you")


def test_nobody_takes_a_teams_name_without_being_in_it(client, team):
    name, people, (captain, *_) = team
    assert upload(client, None, user_id=name).status_code == 401
    assert upload(client, None, user_id=name.upper()).status_code == 401
    for taken in (name, name.upper(), captain, "anonymous"):
        answer = client.post("/v1/teams", json={"name": taken}, headers=bearer(people[captain]))
        assert answer.status_code == 409, taken


def test_a_team_is_told_to_nobody_else_and_is_led_by_its_captain(client, team):
    name, people, (captain, member, invited, stranger) = team
    for path, body in (("invite", {"owner": stranger}), ("join", None), ("leave", None), ("leave", {"owner": captain})):
        answer = client.post(f"/v1/teams/{name}/{path}", json=body, headers=bearer(people[stranger]))
        nowhere = client.post(f"/v1/teams/nowhere/{path}", json=body, headers=bearer(people[stranger]))
        assert answer.status_code == nowhere.status_code == 404
    for who in (member, invited):
        for path, body in (("invite", {"owner": stranger}), ("leave", {"owner": captain})):
            answer = client.post(f"/v1/teams/{name}/{path}", json=body, headers=bearer(people[who]))
            assert answer.status_code == 409, answer.text
    listed = client.get("/v1/teams", headers=bearer(people[invited])).json()["teams"]
    assert [one["name"] for one in listed] == [name]
    assert client.get("/v1/teams", headers=bearer(people[stranger])).json()["teams"] == []


def test_who_leaves_acts_for_it_no_longer_and_the_next_member_leads(client, team):
    name, people, (captain, member, invited, _) = team
    of = submitted(client, people[captain], user_id=name)
    assert client.post(f"/v1/teams/{name}/leave", headers=bearer(people[captain])).status_code == 200
    assert client.get(f"/v1/submissions/{of}/code", headers=bearer(people[captain])).status_code == 403
    assert upload(client, people[captain], user_id=name).status_code == 403
    me = client.get("/v1/me", headers=bearer(people[member])).json()["teams"]
    assert me == [{"team": name, "owner": member, "captain": True, "joined": True}]
    gone = client.post(f"/v1/teams/{name}/leave", json={"owner": invited}, headers=bearer(people[member]))
    assert gone.status_code == 200


def test_a_team_that_is_invited_brings_its_members(arena, client, team):
    name, people, (_, member, invited, _) = team
    arena.put_environment(LADDER, access=Access.PRIVATE)
    client.app.state.api.boards.forget()
    try:
        arena.store.guests.invite(LADDER, name)
        path = f"/v1/boards?env_id={LADDER}"
        assert client.get(path, headers=bearer(people[member])).status_code == 200
        assert client.get(path, headers=bearer(people[invited])).status_code == 404
    finally:
        arena.store.guests.remove(LADDER, name)
        arena.put_environment(LADDER, access=Access.PUBLIC)
        client.app.state.api.boards.forget()


def test_teams_give_nobody_more_quota(new_arena):
    store = new_arena().store
    for owner in ("ann", "bob"):
        store.keys.create(owner, [Scope.SUBMIT])
    quota = DefaultQuota(per_day=3, at_once=None)

    def send(owner, sender=None):
        return store.submissions.add(
            owner, ENV, algorithm="a", digest="0" * 64, main_file="a.py", quota=quota, sender=sender
        )

    send("ann")
    store.teams.create("first", "ann")
    store.teams.invite("first", "bob", by="ann")
    send("first", "ann")  # two of ann's three
    store.teams.create("second", "ann")
    send("second", "ann")
    for owner, sender in (("ann", None), ("first", "ann"), ("second", "ann")):
        with pytest.raises(QuotaExceeded):
            send(owner, sender)
    send("bob")  # invited, but no member: ann's use is not bob's
    store.teams.join("first", "bob")
    with pytest.raises(QuotaExceeded):  # a team has the quota of one owner, whoever sends
        send("first", "bob")
    send("bob")
    assert store.quotas.used("first") == (5, 5)


def test_a_team_is_in_no_team_and_has_a_bound(new_arena):
    store = new_arena().store
    for number in range(25):
        store.keys.create(f"p{number}", [Scope.SUBMIT])
    store.teams.create("team", "p0")
    store.teams.create("other", "p1")
    with pytest.raises(Exception, match="nobody here"):
        store.teams.invite("team", "other", by="p0")
    for number in range(1, 20):
        store.teams.invite("team", f"p{number}", by="p0")
    with pytest.raises(Conflict, match="20 members"):
        store.teams.invite("team", "p20", by="p0")


def test_agents_of_a_team_and_of_its_members_are_one_circle(new_arena):
    store = new_arena().store
    for owner in ("ann", "bob", "cid", "dan"):
        store.keys.create(owner, [Scope.SUBMIT])
    store.teams.create("one", "ann")
    store.teams.create("two", "bob")
    store.teams.invite("two", "ann", by="bob")
    store.teams.invite("two", "cid", by="bob")
    assert len({store.teams.circles()[name] for name in ("ann", "one")}) == 1
    assert "cid" not in store.teams.circles()
    store.teams.join("two", "ann")
    circles = store.teams.circles()
    assert len({circles[name] for name in ("ann", "bob", "one", "two")}) == 1
    assert "dan" not in circles
