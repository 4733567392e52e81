"""harena teams and harena webhooks: what they do, what they print, and with which exit code."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json

import pytest

from harena import cli
from harena.arena.db.models import HookKind, Scope

_numbers = itertools.count()


@pytest.fixture
def person(served, capsys):
    """Makes people with a key, who run commands."""

    def make():
        name = f"person{next(_numbers)}"
        token = served.arena.store.keys.create(name, [Scope.READ, Scope.SUBMIT])[1]

        def run(*words):
            code = cli.main([*words, "--url", served.url, "--key", token])
            out, err = capsys.readouterr()
            return code, out, err

        run.name = name
        return run

    return make


@pytest.fixture
def arena(served):
    return served.arena


# ---- teams ----


def test_a_team_is_founded_joined_and_left(person):
    ann, bob, team = person(), person(), f"team {next(_numbers)}/ä"
    code, out, err = ann("teams", "create", team)
    assert code == 0, err
    assert "captain" in out
    assert bob("teams", "members", team)[0] == 1
    code, out, err = ann("teams", "invite", team, bob.name)
    assert code == 0, err
    assert "invited" in out
    code, out, _ = bob("teams", "join", team, "--json")
    assert code == 0
    assert {one["owner"]: one["joined"] for one in json.loads(out)["members"]} == {ann.name: True, bob.name: True}
    found = json.loads(bob("teams", "list", "--json")[1])
    assert [one["name"] for one in found] == [team]
    code, out, _ = ann("teams", "members", team)
    assert (code, bob.name in out) == (0, True)
    assert ann("teams", "leave", team, "--member", bob.name)[0] == 0
    assert json.loads(bob("teams", "list", "--json")[1]) == []
    code, out, err = bob("teams", "list")
    assert (code, out) == (0, "")
    assert "harena teams create" in err


def test_what_a_member_submits_for_the_team_is_the_team_s(person, tmp_path):
    ann, team = person(), f"team {next(_numbers)}"
    ann("teams", "create", team)
    agent = tmp_path / "agent.py"
    agent.write_text("def act(observation):\n    return 0\n")
    code, out, err = ann("submit", str(agent), "--env", "CartPole-v1", "--owner", team, "--no-wait", "--json")
    assert code == 0, err
    assert json.loads(out)["owner"] == team


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("teams", "join", "nobody's team"), 1),
        (("teams", "invite", "nobody's team", "ann"), 1),
        (("teams", "leave", "nobody's team"), 1),
        (("teams", "members", "nobody's team"), 1),
        (("teams", "join", "../admin"), 2),
        (("teams", "create", ""), 1),
        (("webhooks", "remove", "f" * 32), 1),
        (("webhooks", "test", "f" * 32), 1),
        (("webhooks", "remove", "../keys"), 2),
        (("webhooks", "add", "http://10.1.2.3/"), 1),
        (("webhooks", "add", "ftp://127.0.0.1/"), 1),
    ],
)
def test_a_refusal_is_one_sentence_and_an_exit_code(person, words, code):
    found, out, err = person()(*words)
    assert (found, out) == (code, ""), err
    assert err.startswith("harena: ")
    assert err.count("\n") == 1


def test_without_a_key_both_say_so(served, capsys):
    for words in (("teams", "list"), ("webhooks", "list")):
        assert cli.main([*words, "--url", served.url]) == 1
        assert "key" in capsys.readouterr().err


# ---- webhooks ----


def test_a_webhook_is_added_tested_and_removed(person, receiver):
    ann = person()
    code, out, err = ann("webhooks", "add", receiver.url, "--json")
    assert code == 0, err
    made = json.loads(out)
    before = len(receiver.got)
    code, out, err = ann("webhooks", "test", made["id"][:8])
    assert (code, out) == (0, "the test arrived\n"), err
    headers, body = receiver.got[before]
    told = json.loads(body)
    assert (told["event"], told["owner"]) == ("test", ann.name)
    parts = dict(part.split("=") for part in headers["Harena-Signature"].split(","))
    right = hmac.digest(made["secret"].encode(), f"{parts['t']}.".encode() + body, hashlib.sha256).hex()
    assert parts["v1"] == right
    code, out, _ = ann("webhooks", "list")
    assert (code, receiver.url in out, made["secret"] in out) == (0, True, False)
    assert ann("webhooks", "remove", made["id"][:8])[0] == 0
    assert json.loads(ann("webhooks", "list", "--json")[1]) == []


def test_a_test_that_does_not_arrive_says_why(person, receiver):
    ann = person()
    made = json.loads(ann("webhooks", "add", f"{receiver.url}gone", "--json")[1])
    code, out, err = ann("webhooks", "test", made["id"])
    assert (code, out) == (1, "")
    assert "the test did not arrive" in err
    assert "410" in err


def test_a_webhook_is_tested_by_its_owner_alone_and_once_at_a_time(person, receiver, arena):
    ann, bob = person(), person()
    made = json.loads(ann("webhooks", "add", receiver.url, "--json")[1])
    assert bob("webhooks", "test", made["id"])[0] == 1
    arena.store.notices.add_delivery(made["id"], "test", {"owner": ann.name})
    later = arena.store.clock() + 3600
    arena.store.notices._end(arena.store.notices.deliveries_of(made["id"])[0].id, next_at=later, attempts=1)
    code, _, err = ann("webhooks", "test", made["id"])
    assert (code, "under way" in err) == (1, True)
    mail = arena.store.notices.add_hook(ann.name, HookKind.MAIL, "ann@example.org")
    code, _, err = ann("webhooks", "test", mail.id)
    assert (code, "only a webhook" in err) == (1, True)
