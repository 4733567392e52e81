"""Every page: on a phone and a desk, light and dark, by keyboard, without a complaint or a request to anybody else."""

from __future__ import annotations

import pytest

from harena.arena.db.models import Event, Scope, SubmissionKind
from harena.arena.db.records import EvaluationOutcome
from support.arenas import ENV, LADDER
from support.driver import DESKTOP, PHONE


@pytest.fixture(scope="module")
def pages(site):
    ladder = site.get(f"/v1/boards?env_id={LADDER}")["entries"][0]["submission_id"]
    scored = site.get(f"/v1/boards?env_id={ENV}")["entries"][0]
    match = site.get(f"/v1/matches?env_id={LADDER}&state=finished")["matches"][0]["id"]
    cups = [
        site.arena.tournaments.create(LADDER, f"Cup {kind}", kind, top=3, games=1)
        for kind in ("round-robin", "swiss", "elimination", "double-elimination")
    ]
    site.arena.matchmaker.wake()
    site.wait(lambda: all(site.arena.tournaments.get(cup.id).state.value == "finished" for cup in cups))
    agent = f"/agent?owner={scored['owner']}&algorithm={scored['algorithm']}&env_id={ENV}"
    season = site.arena.store.seasons.live(ENV).id
    tabs = ("environments", "seasons", "tournaments", "queue", "benched", "owners", "keys", "audit")
    return [
        "/",
        f"/env/{ENV}",
        f"/env/{LADDER}",
        "/submit",
        "/mine",
        "/search?q=first",
        f"/submission/{scored['submission_id']}",
        f"/submission/{ladder}",
        agent,
        f"/match/{match}",
        *(f"/tournament/{cup.id}" for cup in cups),
        f"/seasons/{season}",
        "/login",
        *(f"/admin?tab={tab}" for tab in tabs),
        "/docs",
    ]


def logged_in(browser, site):
    browser.go("/login")
    browser.type("#token", site.key("looks at all", Scope.ADMIN))
    browser.button("Log in", "form")
    browser.until_text("Log out")


PAPER = "Number(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
UNNAMED = """[...document.querySelectorAll('a, button, input, select, textarea, iframe, svg[role=img]')].filter(one =>
  one.getClientRects().length && !one.closest('details:not([open])') && !(one.innerText?.trim() || one.getAttribute('aria-label') || one.title ||
  one.labels?.length)).map(one => one.outerHTML.slice(0, 120))"""
FAINT = """(() => {
  const paint = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (colour, under) => {
    paint.fillStyle = under; paint.fillRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (one) => one.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor);
    return layers.reduce((under, layer) => `rgb(${rgb(layer, under).join(',')})`, 'white');
  };
  const found = [];
  for (const node of document.querySelectorAll('main *, header *')) {
    const own = [...node.childNodes].some(one => one.nodeType === 3 && one.data.trim());
    if (!own || !node.getClientRects().length || node.closest('.unseen, :disabled, .off, svg')) continue;
    const style = getComputedStyle(node), under = behind(node);
    const [a, b] = [light(rgb(style.color, under)), light(rgb(under, 'white'))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${node.tagName}.${node.className} ${node.textContent.slice(0, 40)}`);
  }
  return found;
})()"""


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desk", "phone"])
def test_every_page_is_quiet_fits_can_be_read_and_asks_nobody_else(browser, site, pages, size):
    logged_in(browser, site)
    browser.size(*size)
    for path in pages:
        browser.media(prefers_color_scheme="light", prefers_reduced_motion="reduce")
        browser.go(path)
        assert browser.js("document.title.length > 3 && document.querySelectorAll('h1').length === 1"), path
        assert not browser.js("document.querySelector('main .problem')"), path
        assert browser.too_wide() == [], path
        assert browser.js(UNNAMED) == [], path
        assert browser.js("[...document.querySelectorAll('table')].every(one => one.caption?.textContent)"), path
        assert browser.js("[...document.querySelectorAll('th')].every(one => one.scope)"), path
        assert browser.js(PAPER) > 200, path
        assert browser.js(FAINT) == [], path
        browser.media(prefers_color_scheme="dark", prefers_reduced_motion="reduce")
        assert browser.js(PAPER) < 60, path
        assert browser.js(FAINT) == [], path
        assert browser.complaints() == [], path
        assert browser.foreign() == [], path


def test_the_page_is_walked_through_by_keyboard(browser):
    browser.go("/")
    browser.press("Tab")
    assert browser.js("document.activeElement.innerText") == "Skip to the content"
    assert browser.js("document.activeElement.getBoundingClientRect().top >= 0")
    browser.press("Enter")
    for _ in range(40):
        browser.press("Tab")
        if browser.js("document.activeElement.innerText") == "Tic-tac-toe":
            break
    assert browser.js("document.querySelector('main').contains(document.activeElement)")
    browser.press("Enter")
    browser.until("location.pathname === '/env/tictactoe-v1' && document.querySelector('#board')")
    browser.until("document.activeElement.tagName === 'H1'")
    assert browser.js("document.title") == "Tic-tac-toe · Harena"
    assert browser.js("document.querySelector('#announce').textContent") == "Tic-tac-toe"
    browser.js("history.back()")
    browser.until("document.title === 'Harena' && document.querySelector('.cards')")


def test_links_are_real_and_other_tabs_are_left_alone(browser):
    browser.go("/")
    assert browser.js("[...document.querySelectorAll('main a')].every(one => one.getAttribute('href').startsWith('/'))")
    taken = "(() => { const click = new MouseEvent('click', {bubbles: true, cancelable: true, ctrlKey: true});"
    taken += "const link = document.querySelector('main h2 a'); link.target = '_blank';"
    taken += "link.addEventListener('click', event => event.preventDefault()); link.dispatchEvent(click);"
    assert browser.js(taken + "return location.pathname })()") == "/"


def test_a_theme_is_chosen_and_kept(browser):
    browser.go("/")
    browser.button("Theme: auto", "header")
    browser.button("Theme: light", "header")
    browser.go("/submit")
    assert browser.js("[document.documentElement.dataset.theme, document.querySelector('#theme').innerText]") == [
        "dark",
        "Theme: dark",
    ]
    assert browser.js("getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0] < 128")


def test_nothing_moves_for_those_who_asked_for_that(browser):
    browser.media(prefers_reduced_motion="reduce")
    browser.go("/")
    assert browser.js(
        "[...document.querySelectorAll('*')].every(one => getComputedStyle(one).animationName === 'none')"
    )


def test_a_board_is_filtered_and_the_address_says_how(browser):
    browser.go(f"/env/{ENV}")
    browser.type("#filter-user", "bob")
    browser.until("!document.querySelector('#board').innerText.includes('Balance')")
    assert browser.js("location.search") == "?user=bob"
    assert browser.js("document.activeElement.id") == "filter-user"
    browser.go(f"/env/{ENV}?user=bob")
    assert "Lean" in browser.text("#board")
    assert "Balance" not in browser.text("#board")


def test_a_long_board_has_pages_and_an_ended_season_keeps_it_with_its_replays(browser, site):
    env_id = "MountainCar-v0"
    site.arena.put_environment(env_id, settings={"episodes": 2})
    real = site.submit("def act(observation):\n    return 2\n", owner="ann", algorithm="Right", env_id=env_id)
    with site.arena.store.begin():
        for number in range(55):
            ranked_as(site.arena.store, env_id, f"Agent {number}", float(number))
    browser.go(f"/env/{env_id}")
    assert browser.js("document.querySelectorAll('#board tbody tr').length") == 50
    browser.button("Next", "#board")
    browser.until("location.search === '?offset=50' && document.querySelectorAll('#board tbody tr').length === 6")
    assert browser.text("#board tbody tr:last-child .rank") == "56"
    season = site.arena.store.seasons.live(env_id)
    site.arena.seasons.end(season.id, without_finals=True)
    browser.go(f"/env/{env_id}?season={season.id}")
    assert "The board is final" in browser.text("#board")
    browser.go(f"/submission/{real.id}")
    browser.button("Episode 1", "main")
    browser.until("document.querySelector('#scrub') && window.harena.count() > 10")


def ranked_as(store, env_id, algorithm, score):
    made = store.submissions.add("bob", env_id, algorithm=algorithm, digest="0" * 64, main_file="agent.py")
    store.submissions.check(made.id, SubmissionKind.VERIFIED)
    store.submissions.move(made.id, Event.QUEUE)
    store.submissions.move(made.id, Event.START)
    store.submissions.rank(made.id, EvaluationOutcome(score=score, low=score - 1, high=score + 1))


def test_a_match_shows_its_replay_which_plays(browser, site):
    match = site.get(f"/v1/matches?env_id={LADDER}&state=finished")["matches"][0]
    browser.go(f"/match/{match['id']}")
    viewer = "document.querySelector('iframe').contentWindow"
    browser.until(f"{viewer}.harena?.count() === {match['steps'] + 1}")
    browser.until("document.querySelector('iframe').clientHeight > 400")
    browser.go(f"/match/{match['id']}")  # once more, now that the browser keeps the replay
    browser.until(f"{viewer}.harena?.count() === {match['steps'] + 1}")
    browser.js(f"{viewer}.harena.seek(3)")
    assert browser.js(f"{viewer}.harena.frame()") == 3
    assert browser.complaints() == []
    for link in browser.js("[...document.querySelectorAll('a[download]')].map(one => one.pathname + one.search)"):
        assert "replay?format=" in link


def test_the_sample_agent_is_copied(browser):
    browser.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    browser.go(f"/env/{ENV}")
    browser.button("Copy", "#sample")
    browser.until_text("Copied", "#sample")


def test_an_unknown_address_is_a_page_for_browsers(browser):
    browser.go("/nowhere")
    assert browser.text("h1") == "No such page"


def test_a_replay_starts_by_itself_and_a_link_opens_it_at_a_step(browser, site):
    matches = site.get(f"/v1/matches?env_id={LADDER}&state=finished")["matches"]
    match = matches[-1]
    viewer = "document.querySelector('iframe')?.contentWindow.harena"
    browser.go(f"/match/{match['id']}")
    browser.until(f"{viewer}?.frame() > 0", 60)
    browser.go(f"/match/{match['id']}?step=2")
    browser.until(f"{viewer}?.step() === 2", 60)
    browser.button("Next match")
    browser.until_text("Previous match", "main", 60)
    browser.button("Previous match")
    browser.until(f"location.pathname === '/match/{match['id']}'", 60)


def test_the_viewer_has_the_theme_of_the_page(browser, site):
    match = site.get(f"/v1/matches?env_id={LADDER}&state=finished")["matches"][0]
    browser.go(f"/match/{match['id']}")
    inside = "getComputedStyle(document.querySelector('iframe').contentDocument.body).backgroundColor"
    browser.until("document.querySelector('iframe')?.contentWindow.harena", 60)
    browser.button("Theme: auto", "header")
    browser.button("Theme: light", "header")
    browser.until(f"{inside} === getComputedStyle(document.body).backgroundColor", 60)


def test_the_front_page_plays_the_latest_match(browser):
    browser.go("/")
    browser.until("document.querySelector('.showcase iframe')?.contentWindow.harena?.count() > 1", 60)


def test_a_ladder_shows_the_limits_that_apply_to_it_and_as_many_agents_as_rows(browser, site):
    browser.go(f"/env/{LADDER}")
    text = browser.text("main")
    assert "Episodes" not in text
    assert "Extra time" in text
    assert f"{len(site.get(f'/v1/boards?env_id={LADDER}')['entries'])} agents" in text


def test_a_page_that_is_not_there_says_so(browser):
    for path in ("/submission/" + "0" * 32, "/match/" + "0" * 32, "/env/nowhere-v0"):
        browser.go(path)
        assert browser.text("h1") == "Not found"
        assert browser.text(".problem")


def test_the_api_is_described_at_docs(browser):
    browser.go("/docs")
    assert browser.js("document.querySelectorAll('.endpoint').length") > 40
    browser.js("document.querySelectorAll('.endpoint').forEach(one => one.open = true)")
    browser.until("[...document.querySelectorAll('.endpoint')].every(one => one.childElementCount === 2)")
    assert "submission_id" in browser.text("main")
    assert browser.complaints() == []
