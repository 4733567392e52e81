"""What happens in the arena is seen in an open page, without reloading it."""

from __future__ import annotations

import statistics
import time

import pytest

from harena.arena.db.models import Event, SubmissionKind
from harena.arena.db.records import EvaluationOutcome
from support import busy
from support.arenas import ENV, LADDER, SLOW, Site

WATCH = """(() => {
  window.seen = {};
  new MutationObserver(() => {
    for (const name of document.querySelectorAll('#board .agent'))
      window.seen[name.innerText] ??= performance.timeOrigin + performance.now();
  }).observe(document.querySelector('#board'), {subtree: true, childList: true, characterData: true});
})()"""


def ready_to_rank(store, algorithm):
    """A submission whose result is about to be stored, as a worker does it."""
    made = store.submissions.add("carol", ENV, algorithm=algorithm, digest="0" * 64, main_file="agent.py")
    store.submissions.check(made.id, SubmissionKind.VERIFIED)
    store.submissions.move(made.id, Event.QUEUE)
    return store.submissions.move(made.id, Event.START).id


@pytest.mark.serial
def test_a_stored_result_is_in_an_open_board_within_half_a_second(browser, site):
    browser.go(f"/env/{ENV}")
    browser.until_text("Live", "#live")
    browser.js(WATCH)
    took_ms = []
    with busy.Span() as span:
        for number in range(7):
            name = f"Seen {number}"
            submission_id = ready_to_rank(site.arena.store, name)
            time.sleep(0.3)  # the page has taken in that it was queued
            outcome = EvaluationOutcome(score=100.0 + number, low=90.0, high=110.0 + number)
            site.arena.store.submissions.rank(submission_id, outcome)
            stored_at = time.time() * 1000
            took_ms.append(browser.until(f"window.seen['{name} v1']") - stored_at)
    print(f"stored to seen, ms: median {statistics.median(took_ms):.0f}, worst {max(took_ms):.0f}")
    assert statistics.median(took_ms) < span.limit(500)


def test_the_front_page_follows_its_boards_and_keeps_what_did_not_change(browser, site):
    browser.go("/")
    browser.until_text("Live", "#live")
    row = f"document.querySelector('[data-env=\"{LADDER}\"] tbody tr')"
    browser.js(f"{row}.here = true")
    submission_id = ready_to_rank(site.arena.store, "On the front page")
    site.arena.store.submissions.rank(submission_id, EvaluationOutcome(score=499.0, low=498.0, high=500.0))
    browser.until_text("On the front page", f'[data-env="{ENV}"]')
    assert browser.js(f"{row}.here") is True


def test_the_focus_stays_on_a_row_that_is_drawn_again(browser, site):
    browser.go(f"/env/{ENV}")
    browser.until_text("Live", "#live")
    browser.js("document.querySelector('#board tbody a').focus()")
    before = browser.js("document.activeElement.href")
    submission_id = ready_to_rank(site.arena.store, "Widens the scale")
    site.arena.store.submissions.rank(submission_id, EvaluationOutcome(score=1.0, low=-900.0, high=2.0))
    browser.until_text("Widens the scale", "#board")
    assert browser.js("document.activeElement.href") == before


def test_a_lost_connection_is_said_and_what_was_missed_is_made_up_for(browser, site):
    with Site(site.arena) as first:
        browser.origin = first.url
        browser.go(f"/env/{ENV}")
        browser.until_text("Live", "#live")
    browser.until_text("Reconnecting", "#live")
    submission_id = ready_to_rank(site.arena.store, "While nobody heard")
    site.arena.store.submissions.rank(submission_id, EvaluationOutcome(score=77.0, low=76.0, high=78.0))
    with Site(site.arena, first.port):
        browser.until_text("Live", "#live", 20)
        browser.until_text("While nobody heard", "#board")
        browser.open("about:blank")


def test_a_running_match_is_drawn_move_by_move_and_becomes_its_replay(browser, site):
    slow = site.submit(SLOW, algorithm="Slow", env_id=LADDER)
    other = site.get(f"/v1/boards?env_id={LADDER}")["entries"][0]["submission_id"]
    frames = "document.querySelector('iframe')?.contentWindow.harena?.count()"
    shows = "document.querySelector('.viewer')?.dataset.shows"
    for _ in range(6):  # on a busy machine a match may be over before the browser has loaded its page
        match = site.arena.challenges.challenge(slow.id, other, 1)[0]
        browser.go(f"/match/{match.id}")
        if browser.until(f"{frames} >= 1 && {shows}", 60) == "live":
            break
    browser.until(f"{frames} >= 3", 60)
    where = browser.js("document.querySelector('iframe').contentDocument.querySelector('#where').textContent")
    assert not where.endswith("of 0")
    browser.until(f"{shows} === 'replay'", 60)
    browser.until(f"{frames} >= 6")
    assert "won" in browser.text("main .status-line") or "Draw" in browser.text("main .status-line")
    assert browser.complaints() == []
