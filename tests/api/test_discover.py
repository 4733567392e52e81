"""Search and feeds. What strangers must not find is in test_private."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from support.served import ENV, bearer, ranked, submitted

ATOM = "{http://www.w3.org/2005/Atom}"


def search(client, text, token=None):
    answer = client.get("/v1/search", params={"q": text}, headers=bearer(token) if token else {})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_search_finds_owners_agents_environments_and_ids(arena, client, new_key):
    owner, token = new_key()
    of = ranked(arena, client, token, score=5.0, algorithm="Zebrafish")
    assert search(client, "zebra")["agents"] == [{"owner": owner, "algorithm": "Zebrafish", "env_id": ENV}]
    assert owner in search(client, owner.upper())["owners"]
    assert [env["env_id"] for env in search(client, "cartp")["environments"]] == [ENV]
    assert [one["id"] for one in search(client, of[:10])["submissions"]] == [of]


def test_search_shows_nobody_else_what_is_not_ranked(client, new_key):
    _, token = new_key()
    of = submitted(client, token, algorithm="Unfinished thought")
    assert search(client, "Unfinished th", token)["agents"]
    assert search(client, of[:12], token)["submissions"]
    assert search(client, "Unfinished th")["agents"] == []
    assert search(client, of[:12])["submissions"] == []


@pytest.mark.parametrize("text", ["%%", "__", "a'; --", '""', "\\\\", "[a-z]", "#999999999999999999"])
def test_search_takes_its_text_as_it_is(client, text):
    found = search(client, text)
    assert all(found[kind] == [] for kind in ("owners", "agents", "matches"))


@pytest.mark.parametrize("text", ["", "a", "   a  ", "x" * 101])
def test_a_search_for_too_little_or_too_much_is_refused(client, text):
    assert client.get("/v1/search", params={"q": text}).status_code == 422


def test_results_are_an_atom_feed_in_which_names_are_text(arena, client, new_key):
    owner, token = new_key(owner="<b>&\"'")
    of = ranked(arena, client, token, score=12.5, algorithm="]]><script>alert(1)</script>")
    answer = client.get("/v1/feeds/results", params={"owner": owner})
    assert answer.headers["content-type"] == "application/atom+xml"
    root = ElementTree.fromstring(answer.text)
    (entry,) = root.findall(f"{ATOM}entry")
    assert entry.findtext(f"{ATOM}title") == f"]]><script>alert(1)</script> v1 of {owner} in {ENV}: 12.5"
    assert entry.find(f"{ATOM}link").get("href").endswith(f"/submission/{of}")
    assert entry.findtext(f"{ATOM}author/{ATOM}name") == owner
    assert root.findtext(f"{ATOM}updated") == entry.findtext(f"{ATOM}updated")
    assert client.get("/v1/feeds/results", params={"owner": owner}).text == answer.text


def test_my_submissions_are_mine_alone_with_all_that_is_known(arena, client, new_key):
    _, token = new_key()
    first = ranked(arena, client, token, score=1.0, algorithm="One")
    second = submitted(client, token, algorithm="Two")
    ranked(arena, client, new_key()[1], score=9.0)
    mine = client.get("/v1/submissions?mine=true", headers=bearer(token)).json()["submissions"]
    assert {one["id"] for one in mine} == {first, second}
    assert all("finalist" in one for one in mine)
    assert client.get("/v1/submissions?mine=true").json()["submissions"] == []


def test_what_waits_says_why(client, new_key):
    of = submitted(client, new_key()[1])
    found = client.get(f"/v1/submissions/{of}").json()
    assert found["state"] == "queued"
    assert found["waits_for"] in ("submissions ahead of it", "a worker")
