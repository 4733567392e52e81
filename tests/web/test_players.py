"""What players do on the page beyond submitting: compare, choose finalists, search, look at rivals, embed, join teams."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import threading

import pytest

from support.arenas import BALANCE, ENV, LADDER, LEAN

NAMED = frozenset({"button", "link", "textbox", "searchbox", "checkbox", "combobox", "radio", "Iframe", "table", "img"})
LANDMARKS = ("banner", "navigation", "main", "contentinfo")


def log_in(browser, token):
    browser.go("/login")
    browser.type("#token", token)
    browser.button("Log in", "form")
    browser.until_text("Log out")


def tree(browser):
    """Role, name and level of what a screen reader finds."""
    browser.cdp("Accessibility.enable")
    nodes = browser.cdp("Accessibility.getFullAXTree")["nodes"]
    found = []
    for node in nodes:
        if not node.get("ignored"):
            role, name = node["role"].get("value", ""), node.get("name", {}).get("value", "").strip()
            levels = [one["value"]["value"] for one in node.get("properties", ()) if one["name"] == "level"]
            found.append((role, name, levels[0] if levels else None))
    return found


@pytest.mark.parametrize(
    "path", ["/", f"/env/{LADDER}", f"/env/{ENV}", "/submit", "/mine", "/search?q=first", "/login"]
)
def test_a_screen_reader_finds_landmarks_headings_in_order_and_a_name_for_every_control(browser, site, path):
    log_in(browser, site.key("reader"))
    browser.go(path)
    found = tree(browser)
    roles = [role for role, _, _ in found]
    for landmark in LANDMARKS:
        assert roles.count(landmark) >= 1, (landmark, path)
    assert roles.count("main") == 1
    assert [one for one in found if one[0] in NAMED and not one[1]] == []
    levels = [level for role, _, level in found if role == "heading"]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels


def test_own_submissions_are_compared_and_one_is_chosen_for_the_finals(browser, site):
    owner, token = "comparer", site.key("comparer")
    ids = [site.submit(code, owner=owner, algorithm=name).id for name, code in (("Bal", BALANCE), ("Lea", LEAN))]
    log_in(browser, token)
    browser.go("/mine")
    browser.until_text("2 submissions")
    for one in ids:
        browser.js(f"document.querySelector('input[value=\"{one}\"]').click()")
    browser.until_text("Practice score")
    assert all(one in browser.js("location.search") for one in ids)
    browser.button("Choose", "main")
    browser.until_text("Withdraw")
    assert any(site.arena.store.finalists.find(one) for one in ids)
    browser.go(browser.js("location.pathname + location.search"))
    browser.until_text("Practice score")


def test_search_and_the_matrix_lead_to_agents(browser):
    browser.go("/search?q=midd")
    browser.until_text("Middle")
    browser.go(f"/env/{LADDER}")
    browser.until_text("Head to head")
    assert browser.js("document.querySelectorAll('.matrix tbody tr').length") == 3
    assert browser.js(
        "[...document.querySelectorAll('.matrix td:not(.self)')].some(one => /\\d+\\/\\d+\\/\\d+/.test(one.innerText))"
    )


def test_the_front_page_shows_a_moment_of_each_ladder_and_hides_it_from_keys(browser):
    browser.go("/")
    browser.until("document.querySelector('.thumbnail iframe')")
    assert browser.js(
        "[...document.querySelectorAll('.thumbnail')].every(one => one.inert && one.ariaHidden === 'true')"
    )


def test_a_team_is_founded_and_offered_when_submitting(browser, site):
    token = site.key("founder")
    log_in(browser, token)
    browser.type("form input[name=name]", "The founders")
    browser.button("Found a team", "main")
    browser.until_text("captain")
    browser.go("/submit")
    assert browser.js("[...document.querySelector('#owner').options].map(one => one.value)") == [
        "founder",
        "The founders",
    ]


@contextlib.contextmanager
def other_site(html):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(html.encode())

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()


def test_another_site_may_frame_the_embed_page_and_nothing_else(browser, site):
    match = site.get(f"/v1/matches?env_id={LADDER}&state=finished")["matches"][0]["id"]
    for path, framed in ((f"/embed/match/{match}", True), (f"/match/{match}", False), ("/login", False)):
        with other_site(f'<title>x</title><iframe src="{site.url}{path}"></iframe>') as url:
            browser.complaints()
            browser.open(url)
            browser.until("document.readyState === 'complete'")
            refused = [text for text in browser.complaints() if "frame" in text.lower() and site.url in text]
            assert (not refused) is framed, (path, refused)
