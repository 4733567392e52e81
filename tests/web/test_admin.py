"""What a host does on the page is done in the arena."""

from __future__ import annotations

import pytest

from harena.arena.db.models import KeyRefused, Scope
from support.arenas import ENV, FIRST, LADDER


@pytest.fixture
def host(browser, site):
    browser.go("/login")
    browser.type("#token", site.key("the host", Scope.ADMIN))
    browser.button("Log in", "form")
    browser.until_text("Log out")
    return browser


def test_a_key_logs_in_and_out_and_a_wrong_one_does_not(browser, site):
    browser.go("/login")
    browser.type("#token", "hrn_wrong")
    browser.button("Log in", "form")
    browser.until("document.querySelector('form [role=alert]')")
    assert browser.js("document.activeElement.id") == "token"
    browser.clear("#token")
    browser.type("#token", site.key("erin"))
    browser.button("Log in", "form")
    browser.until_text("erin", "#account")
    assert browser.js("document.querySelector('#nav-admin').hidden") is True
    assert browser.js("document.cookie") == ""  # scripts cannot read it
    browser.go("/admin")
    browser.until_text('does not have the scope "host"')
    browser.go("/submit")
    browser.until_text("It will be listed under erin")
    browser.go("/login")
    browser.button("Log out")
    browser.until_text("Log in", "#account")


def test_an_environment_is_closed_opened_edited_and_added(host, site):
    host.go("/admin?tab=environments")
    host.button("Close", ".item:has(a[href='/env/CartPole-v1'])")
    host.until_text("closed", ".item:has(a[href='/env/CartPole-v1'])")
    assert not site.arena.store.environments.get(ENV).enabled
    host.button("Open", ".item:has(a[href='/env/CartPole-v1'])")
    host.until_text("open", ".item:has(a[href='/env/CartPole-v1'])")
    host.button("Edit", ".item:has(a[href='/env/CartPole-v1'])")
    host.until("document.querySelector('.item [name=summary]')")
    host.clear(".item [name=summary]")
    host.type(".item [name=summary]", "Balance it.")
    host.button("Save", ".item")
    host.until("!document.querySelector('.item [name=summary]')")
    settings = site.arena.store.environments.get(ENV).settings
    assert (settings["summary"], settings["episodes"], settings["title"]) == ("Balance it.", 3, "CartPole")
    host.type("form [name=env_id]", "no_such_game-v9")
    host.button("Add", "main")
    host.until("document.querySelector('form .problem')")
    host.clear("form [name=env_id]")
    host.type("form [name=env_id]", "rps-v1")
    host.button("Add", "main")
    host.until("document.querySelector(\"a[href='/env/rps-v1']\")")
    assert site.arena.store.seasons.live("rps-v1") is not None


def test_a_season_is_frozen_ended_after_a_question_and_started(host, site):
    site.arena.put_environment("leduc-v1", settings={"games_target": 1, "upkeep_s": 3600.0})
    item = ".item:has(a[href='/env/leduc-v1'])"
    host.go("/admin?tab=seasons")
    host.button("Freeze", item)
    host.until_text("frozen", item)
    assert site.arena.store.seasons.live("leduc-v1").frozen
    host.button("End", item)
    host.confirm("Keep it as it is")
    assert site.arena.store.seasons.live("leduc-v1") is not None
    host.button("End", item)
    host.confirm("End")
    host.until(f"!document.querySelector({item!r})")
    assert site.arena.store.seasons.live("leduc-v1") is None
    host.js("document.querySelector('form [name=env_id]').value = 'leduc-v1'")
    host.type("form [name=name]", "The second")
    host.button("Start", "form")
    host.until_text("The second", item)
    past = site.arena.store.seasons.all("leduc-v1")
    ended = next(one for one in past if one.ended_at)
    host.go(f"/seasons/{ended.id}")
    assert len(host.js("document.querySelectorAll('.hex')[1].textContent")) == 64
    host.go("/env/leduc-v1")
    host.js(f"document.querySelector('#season').value = '{ended.id}'")
    host.js("document.querySelector('#season').dispatchEvent(new Event('change'))")
    host.until_text("This season has ended", "#board")


def test_a_verified_season_ends_after_its_finals(host, site):
    env_id = "FrozenLake-v1"
    site.arena.put_environment(env_id, settings={"episodes": 2, "practice_episodes": 1, "final_episodes": 3})
    site.submit("def act(observation):\n    return 1\n", env_id=env_id, algorithm="Down")
    season = site.arena.store.seasons.live(env_id)
    item = f".item:has(a[href='/env/{env_id}'])"
    host.go("/admin?tab=seasons")
    host.button("End", item)
    host.confirm("End")
    host.until_text("finals have not been played")
    host.button("Freeze", item)
    host.until_text("frozen", item)
    host.button("Evaluate finalists", item)
    host.confirm("Evaluate finalists")
    site.wait(lambda: site.get(f"/v1/seasons/{season.id}")["finals"] == {"done": 1, "total": 1})
    host.go("/admin?tab=seasons")
    host.until_text("finals 1 of 1", item)
    host.button("End", item)
    host.confirm("End")
    host.until(f"!document.querySelector({item!r})")
    host.go(f"/seasons/{season.id}")
    host.until_text("final, public", ".board")
    assert host.js("document.querySelectorAll('.hex').length") == 4


def test_a_key_is_shown_once_rotated_and_revoked(host, site):
    host.go("/admin?tab=keys")
    host.type("form [name=owner]", "frank")
    host.button("Create a key", "form")
    token = host.until("document.querySelector('.once pre')?.innerText")
    assert site.arena.store.keys.authenticate(token, Scope.SUBMIT).owner == "frank"
    row = "tr:has(th[scope=row])"
    frank = f"[...document.querySelectorAll('{row}')].find(one => one.innerText.startsWith('frank'))"
    host.until(frank)
    host.js(f"{frank}.setAttribute('data-test', 'frank')")
    host.button("Rotate", "[data-test=frank]")
    host.confirm("Rotate")
    new = host.until(f"(text => text !== {token!r} && text)(document.querySelector('.once pre').innerText)")
    with pytest.raises(KeyRefused):
        site.arena.store.keys.authenticate(token, Scope.SUBMIT)
    host.go("/admin?tab=keys")
    assert new not in host.js("document.body.innerText")
    live = f"[...document.querySelectorAll('{row}')].find(one => /^frank/.test(one.innerText) && /Revoke/.test(one.innerText))"
    host.until(live)
    host.js(f"{live}.setAttribute('data-test', 'frank')")
    host.button("Revoke", "[data-test=frank]")
    host.confirm("Revoke")
    host.until(f"!({live})")
    with pytest.raises(KeyRefused):
        site.arena.store.keys.authenticate(new, Scope.SUBMIT)


def test_an_agent_is_benched_and_let_back(host, site):
    agent = site.submit(FIRST, algorithm="Benched", owner="gina", env_id=LADDER)
    host.go("/admin?tab=benched")
    host.type("form [name=submission_id]", agent.id)
    host.type("form [name=reason]", "it stalls")
    host.button("Bench", "form")
    host.until_text("it stalls", "table")
    assert any(one.submission_id == agent.id for one in site.arena.store.roster.all_benched())
    host.button("Let it play")
    host.until_text("No agents are benched")


def test_quotas_are_set_and_the_queue_is_seen(host, site):
    host.go("/admin?tab=owners")
    host.type("form [name=owner]", "ann")
    host.type("form [name=per_day]", "1000")
    host.button("Save", "form")
    host.until_text("1000", "table")
    assert site.arena.store.owners.ensure("ann").per_day == 1000
    host.go("/admin?tab=queue")
    host.until_text("match", "table")


def test_a_dead_job_is_revived(host, site):
    queue = site.arena.queue
    job_id = queue.enqueue("nobody does this", {})
    queue.fail(queue.claim("nobody does this", "tester"), "the box was lost", retry=False)
    host.go("/admin?tab=queue")
    host.until_text("the box was lost")
    host.button("Revive")
    host.until_text("No jobs have failed permanently")
    assert queue.get(job_id).state.value == "queued"
    queue.cancel(job_id)


def test_a_tournament_is_held(host):
    host.go("/admin?tab=tournaments")
    host.js("document.querySelector('form [name=env_id]').value = 'tictactoe-v1'")
    host.type("form [name=name]", "Winter cup")
    host.button("Start", "form")
    host.until("location.pathname.startsWith('/tournament/')")
    host.until_text("finished", "h1", 30)
    host.until("document.querySelectorAll('.cross tbody tr').length >= 3")
