"""Whatever people write into the arena is text in the page: it shows, and nothing of it runs."""

from __future__ import annotations

import pytest

from harena.arena.db.models import Scope
from support.arenas import ENV, LADDER, LEAN

RUNS = '<img src=x onerror="window.owned=1"><script>window.owned=1</script>'
LINK = "javascript:window.owned=1"
OWNER, ALGORITHM, TITLE = f"own{RUNS}", f"algo{RUNS}", f"title{RUNS}"
SEASON, CUP = f"season{RUNS}", f"cup{RUNS}"
LOUD = f"def act(observation):\n    print({RUNS!r})\n    raise ValueError({RUNS!r})\n"


@pytest.fixture(scope="module")
def hostile(site):
    """An environment, its season, agents, a tournament and matches, all with names that would like to run."""
    env_id = "connect_four-v1"
    texts = {"title": TITLE, "summary": RUNS, "rules": f"{RUNS} {LINK}", "sample_agent": RUNS}
    site.arena.put_environment(env_id, settings={**texts, "games_target": 1, "upkeep_s": 3600.0})
    site.arena.seasons.end(site.arena.store.seasons.live(env_id).id)
    season = site.arena.seasons.start(env_id, SEASON)
    code = "def act(observation):\n    return [c for c in range(7) if observation[c] == 0][0]\n"
    first = site.submit(code, owner=OWNER, algorithm=ALGORITHM, env_id=env_id)
    site.submit(code, owner=LINK, algorithm=LINK, env_id=env_id)
    site.wait(lambda: len(site.get(f"/v1/boards?env_id={env_id}")["entries"]) == 2)
    cup = site.arena.tournaments.create(env_id, CUP, "elimination", top=2, games=1)
    site.arena.matchmaker.wake()
    site.wait(lambda: site.get(f"/v1/tournaments/{cup.id}")["state"] == "finished")
    match = site.get(f"/v1/matches?env_id={env_id}&state=finished")["matches"][0]
    agent = site.get(f"/v1/submissions/{first.id}")
    return {"env_id": env_id, "season": season.id, "cup": cup.id, "match": match["id"], "agent": agent["id"]}


def nothing_ran(browser):
    assert browser.js("window.owned === undefined && !document.querySelector('main img, main script')")
    assert browser.js("[...document.querySelectorAll('a')].every(one => one.protocol.startsWith('http'))")
    assert browser.complaints() == []
    return True


def test_names_titles_and_rules_are_shown_and_run_nothing(browser, hostile):
    pages = {
        "/": [TITLE, OWNER, ALGORITHM],
        f"/env/{hostile['env_id']}": [TITLE, OWNER, ALGORITHM, SEASON, CUP],
        f"/submission/{hostile['agent']}": [OWNER, ALGORITHM, LINK],
        f"/match/{hostile['match']}": [OWNER, ALGORITHM, LINK],
        f"/tournament/{hostile['cup']}": [CUP, OWNER, ALGORITHM],
        f"/seasons/{hostile['season']}": [SEASON, OWNER],
        "/submit": [],
    }
    for path, shown in pages.items():
        browser.go(path)
        for text in shown:
            browser.until(f"document.querySelector('main').textContent.includes({text!r})")
        assert nothing_ran(browser), path


def test_what_the_address_says_is_not_run(browser):
    for path in (
        "/agent?owner=%3Cimg%20src=x%20onerror=%22window.owned=1%22%3E&algorithm=%3Cscript%3E&env_id=CartPole-v1",
        "/env/%3Cimg%20src=x%20onerror=%22window.owned=1%22%3E",
        f"/env/{ENV}?user=%3Cimg%20src=x%20onerror=window.owned=1%3E",
        "/submission/%3Cscript%3Ewindow.owned=1%3C%2Fscript%3E",
    ):
        browser.go(path)
        assert browser.js("window.owned === undefined && !document.querySelector('main img, main script')"), path


def test_logs_reasons_and_file_names_are_text(browser):
    browser.go("/submit")
    browser.drop(".drop", {f"{RUNS.replace('/', '')}.py": LEAN})
    browser.until("document.querySelector('.files').textContent.includes('onerror')")
    browser.button("Remove")
    browser.drop(".drop", {"agent.py": LOUD})
    browser.clear("#algorithm")
    browser.type("#algorithm", "Loud")
    browser.button("Submit", "form")
    browser.until("document.querySelector('main .status')?.dataset.state === 'failed'", 30)
    browser.until("document.querySelector('.reason').textContent.includes('onerror')")
    browser.until("document.querySelector('.log')?.textContent.includes('onerror')")
    assert nothing_ran(browser)


def test_the_hosts_page_shows_hostile_names_as_text(browser, site, hostile):
    token = site.key("host of injection", Scope.ADMIN)
    site.key(OWNER)
    browser.go("/login")
    browser.type("#token", token)
    browser.button("Log in", "form")
    browser.until_text("Log out")
    site.arena.store.owners.set_quota(OWNER, per_day=1, at_once=1)
    tabs = {"environments": TITLE, "seasons": SEASON, "tournaments": CUP, "owners": OWNER, "keys": OWNER}
    for tab, text in tabs.items():
        browser.go(f"/admin?tab={tab}")
        browser.until(f"document.querySelector('main').textContent.includes({text!r})")
        assert nothing_ran(browser), tab


def test_scripts_and_styles_come_from_files_only(browser, site):
    for name in ("index.html", "docs.html"):
        browser.open(f"{site.url}/static/{name}")
        assert browser.js("[...document.scripts].every(one => one.src) && !document.querySelector('style, [style]')")
    browser.go(f"/env/{LADDER}")
    browser.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned=1'}))")
    assert browser.js("window.owned === undefined")
    assert any("Content Security Policy" in text for text in browser.complaints())


MARKDOWN = f"""# Rules <b>x</b>

- one **bold** and *soft*
- two `code`

```
{RUNS}
```

[fine](https://example.org/a) [bad]({LINK}) [worse](JaVaScRiPt:window.owned=1) [data](data:text/html,x) {RUNS}
[tab](java\tscript:window.owned=1) [slash](//example.org) [quote](https://example.org/"onclick="window.owned=1)
"""


def test_rules_are_markdown_in_which_nothing_runs(browser, site):
    site.arena.put_environment("Blackjack-v1", settings={"title": "Blackjack", "rules": MARKDOWN})
    browser.go("/env/Blackjack-v1")
    rules = "document.querySelector('.markdown')"
    assert browser.js(f"[...{rules}.querySelectorAll('li')].map(one => one.innerText)") == [
        "one bold and soft",
        "two code",
    ]
    assert browser.js(f"{rules}.querySelector('h3').innerText") == "Rules <b>x</b>"
    assert browser.js(f"{rules}.querySelector('pre').innerText") == RUNS
    links = browser.js(f"[...{rules}.querySelectorAll('a')].map(one => [one.innerText, one.protocol, one.rel])")
    safe = "noopener noreferrer nofollow"
    assert links == [["fine", "https:", safe], ["quote", "https:", safe]]
    assert browser.js(f"{rules}.querySelectorAll('[onclick], img, script').length") == 0
    assert nothing_ran(browser)
