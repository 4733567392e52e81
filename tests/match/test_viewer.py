"""The page in a real browser: it plays, keys and slider move it, and nothing that an agent wrote runs or leaves it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harena.match import registry, spaces
from harena.match.game import BaseGame, IllegalAction, Outcome
from harena.match.replay import replay, viewer
from harena.match.replay.replay import Replay, ReplayRecorder
from support import browser as browsers
from support.browser import Browser

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u2028&lt;"
BUILT_IN = ["connect_four-v1", "leduc-v1", "pong-v1", "rps-v1", "tictactoe-v1", "tron-v1"]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    if browsers.missing():
        pytest.skip(browsers.missing())
    with browsers.started() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    chromium.size(1200, 900)
    return chromium


def played(environment: str, *, names: Sequence[str] = (), steps: int = 10_000, **result: Any) -> Replay:
    """Every seat tries its actions in turn: short, and the same each time."""
    game = registry.make(environment)
    game.reset(3)
    agents = names or [f"agent{seat}" for seat in range(game.seats)]
    recorder = ReplayRecorder(game, environment=game.id, seed=3, config={}, match_id="m1", agents=agents)
    for number in range(steps):
        if not game.to_move():
            break
        actions = stepped(game, number)
        recorder.step(
            {seat: game.action_space(seat).encode(action) for seat, action in actions.items()},
            dict.fromkeys(actions, 2000),
        )
    over = not game.to_move()
    outcome = game.outcome() if over else game.forfeit(result.get("forfeited", [0]))
    fields: dict[str, Any] = {
        "winner": outcome.winner,
        "scores": outcome.scores,
        "status": "finished",
        "reason": outcome.reason,
        "seats": [("ok", "")] * game.seats,
        "started_at": 1e9,
        "ended_at": 1e9 + 2,
    }
    return Replay.load(recorder.finish(**{**fields, **result}))


def stepped(game: Any, number: int) -> dict[int, int]:
    for more in range(100):
        actions = {seat: (number // 2 + 3 * seat + more) % game.action_space(seat).n for seat in game.to_move()}
        try:
            game.step(actions)
        except IllegalAction:
            continue
        return actions
    raise AssertionError("no legal action")


def opened(browser: Browser, tmp_path: Path, page: str) -> Browser:
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    browser.open(path)
    return browser


def quiet(browser: Browser) -> bool:
    """No error or warning in the console, and the page asked for nothing but itself."""
    assert [entry for entry in browser.logs("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    assert [url for url in browser.requests() if not url.endswith("/page.html")] == []
    return True


def scores(browser: Browser) -> list[str]:
    return browser.js("[...document.querySelectorAll('.seat .score')].map((node) => node.textContent)")


# ---- without a browser ----


def embedded(page: str) -> Any:
    found = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def test_no_tag_of_a_stranger_is_in_the_page():
    page = viewer.html(played("tictactoe-v1", names=[HOSTILE, "b"]), logs=[HOSTILE, ""])
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028") & set(data[1])
    assert embedded(page)["seats"][0]["name"] == HOSTILE
    assert embedded(page)["logs"][0] == HOSTILE


def test_only_our_scripts_may_run():
    page = viewer.html(played("tictactoe-v1"))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert len(re.findall(r"'sha256-", policy[1])) == 3


def test_long_matches_are_thinned_out_and_keep_their_sums(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(viewer, "MAX_FRAMES", 20)
    full = played("pong-v1")
    data = embedded(viewer.html(full))
    numbers = [frame["step"] for frame in data["frames"]]
    assert len(numbers) <= 21
    assert (numbers[0], numbers[-1]) == (0, full.steps)
    assert all(number % data["stride"] == 0 for number in numbers[:-1])
    assert data["frames"][-1]["totals"] == [
        sum(frame.rewards.get(seat, 0.0) for frame in full.frames()) for seat in (0, 1)
    ]
    assert data["frames"][-1]["clocks"] == [pytest.approx(full.steps * 0.002)] * 2


def test_large_views_are_thinned_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(viewer, "MAX_FRAME_BYTES", 20_000)
    page = viewer.html(played("pong-v1"))
    assert embedded(page)["stride"] > 1
    assert sum(len(json.dumps(frame)) for frame in embedded(page)["frames"]) < 40_000


def test_a_notebook_gets_the_page_in_a_frame_of_its_own():
    shown = played("tictactoe-v1", names=[HOSTILE, "b"])._repr_html_()
    assert shown.startswith("<iframe")
    assert 'sandbox="allow-scripts"' in shown
    assert shown.count("<") == 2


def test_nan_in_a_view_is_not_a_broken_page(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registry, "make", lambda name, config=None: Strange())
    data = embedded(viewer.html(strange()))
    assert data["frames"][0]["view"]["value"] is None


# ---- in the browser ----


@pytest.mark.parametrize("environment", BUILT_IN)
def test_every_built_in_game_is_drawn(browser: Browser, tmp_path: Path, environment: str):
    match = played(environment)
    opened(browser, tmp_path, viewer.html(match))
    assert browser.js("document.querySelector('#stage .generic')") is None
    assert browser.js("document.querySelector('#stage canvas, #stage svg').getAttribute('aria-label')")
    browser.press("End")
    assert browser.text("#where") == f"step {match.steps} of {match.steps}"
    assert [float(score.replace("−", "-")) for score in scores(browser)] == list(match.scores)
    winner = "draw" if match.winner is None else f"{match.agents[match.winner]} wins"
    assert browser.text("#result").startswith(winner)
    assert match.reason in browser.text("#result")
    assert quiet(browser)


def test_keys_move_through_the_frames(browser: Browser, tmp_path: Path):
    match = played("connect_four-v1")
    opened(browser, tmp_path, viewer.html(match))
    at: list[int] = [browser.js("harena.frame()")]
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "End", "ArrowRight", "Home", "ArrowLeft"):
        browser.press(key)
        at.append(browser.js("harena.frame()"))
    assert at == [0, 1, 2, 1, match.steps, match.steps, 0, 0]
    browser.press("+", "+", "-")
    assert browser.js("document.getElementById('speed').value") == "2"
    assert quiet(browser)


def test_space_plays_and_pauses(browser: Browser, tmp_path: Path):
    opened(browser, tmp_path, viewer.html(played("pong-v1")))
    browser.press(" ")
    assert browser.js("document.getElementById('toggle').getAttribute('aria-label')") == "Pause"
    wait = "new Promise((done) => { const look = () => (harena.frame() > 2 ? done(true) : requestAnimationFrame(look)); look(); })"
    assert browser.js(wait)
    browser.press(" ")
    assert browser.js("document.getElementById('toggle').getAttribute('aria-label')") == "Play"
    stopped = browser.js("harena.frame()")
    assert browser.js("new Promise((done) => setTimeout(() => done(harena.frame()), 100))") == stopped
    assert quiet(browser)


def test_playing_ends_with_the_last_frame(browser: Browser, tmp_path: Path):
    match = played("tictactoe-v1")
    opened(browser, tmp_path, viewer.html(match))
    browser.press("+", "+", "+", "+")
    browser.click("#toggle")
    wait = "new Promise((done) => { const look = () => (harena.frame() === harena.count() - 1 ? done(true) : requestAnimationFrame(look)); look(); })"
    assert browser.js(wait)
    assert (
        browser.js("new Promise((done) => setTimeout(() => done(document.getElementById('toggle').ariaLabel), 50))")
        == "Play"
    )


def test_a_focused_button_takes_the_space_key_once(browser: Browser, tmp_path: Path):
    opened(browser, tmp_path, viewer.html(played("connect_four-v1")))
    browser.js("document.getElementById('forward').focus()")
    browser.press(" ")
    assert browser.js("harena.frame()") == 1


def test_the_slider_moves_the_game(browser: Browser, tmp_path: Path):
    match = played("pong-v1")
    opened(browser, tmp_path, viewer.html(match))
    browser.click("#scrub")  # its middle
    middle = browser.js("harena.frame()")
    assert abs(middle - match.steps / 2) <= match.steps / 20
    assert browser.text("#where") == f"step {middle} of {match.steps}"
    browser.press("ArrowRight")  # the slider has the focus: one step, not two
    assert browser.js("harena.frame()") == middle + 1
    assert browser.js("document.getElementById('scrub').value") == str(middle + 1)
    assert quiet(browser)


def test_scores_actions_rewards_and_clocks_are_those_of_the_frame(browser: Browser, tmp_path: Path):
    match = played("pong-v1")
    frame = next(frame for frame in match.frames() if frame.rewards)
    opened(browser, tmp_path, viewer.html(match))
    browser.js(f"harena.seek({frame.number})")
    assert scores(browser) == [str(points) for points in frame.view["scores"]]
    seat = browser.text(".seat")
    assert ["up", "stay", "down"][frame.actions[0]] in seat
    assert ("+1" if frame.rewards[0] > 0 else "−1") in seat
    assert "2.0 ms" in seat


def test_a_forfeit_is_shown_with_its_reason(browser: Browser, tmp_path: Path):
    match = played(
        "connect_four-v1",
        steps=4,
        forfeited=[0],
        winner=1,
        scores=(-1.0, 1.0),
        seats=[("timeout", "a move took 6.1 s of CPU"), ("ok", "")],
    )
    opened(browser, tmp_path, viewer.html(match, logs=["thinking...\n", ""]))
    browser.press("End")
    assert "timeout: a move took 6.1 s of CPU" in browser.text(".seat")
    assert "winner" in browser.text(".seat:nth-child(2)")
    assert scores(browser) == ["−1", "1"]
    assert "thinking..." in browser.text("#logs")


def test_a_match_without_a_result_says_so(browser: Browser, tmp_path: Path):
    match = played("connect_four-v1", steps=4, status="cancelled", winner=None, scores=(0.0, 0.0), reason="")
    opened(browser, tmp_path, viewer.html(match))
    assert browser.text("#result") == "no result: cancelled"


def test_a_hostile_name_log_or_reason_is_only_text(browser: Browser, tmp_path: Path):
    match = played(
        "connect_four-v1",
        names=[HOSTILE, "b"],
        steps=4,
        forfeited=[0],
        winner=1,
        scores=(-1.0, 1.0),
        reason=HOSTILE,
        seats=[("crash", HOSTILE), ("ok", "")],
    )
    opened(browser, tmp_path, viewer.html(match, logs=[HOSTILE, HOSTILE]))
    browser.press("End")
    assert HOSTILE[:20] in browser.js("document.title")
    assert browser.js("document.querySelectorAll('img').length") == 0
    assert browser.js("document.querySelectorAll('script').length") == 3
    assert HOSTILE[:40] in browser.text(".seat .name")
    assert HOSTILE[:40] in browser.text("#logs")
    assert quiet(browser)


def test_an_injected_script_would_not_run(browser: Browser, tmp_path: Path):
    page = viewer.html(played("tictactoe-v1")).replace("</body>", "<script>document.title = 'owned'</script></body>")
    opened(browser, tmp_path, page)
    assert browser.js("document.title") != "owned"


def test_frames_can_be_appended_while_a_match_runs(browser: Browser, tmp_path: Path):
    match = played("tictactoe-v1")
    frames = list(match.frames())
    data = {
        "match": {
            "environment": "tictactoe-v1",
            "game": "tictactoe",
            "title": "Tic-tac-toe",
            "seed": None,
            "match_id": "m1",
            "status": None,
            "reason": "",
            "winner": None,
            "scores": None,
            "steps": None,
        },
        "seats": [{"name": name, "status": "ok", "reason": ""} for name in match.agents],
        "frames": [],
        "stride": 1,
        "logs": None,
    }
    opened(browser, tmp_path, viewer.page(data))
    for frame in frames:
        event = {
            "type": "step",
            "step": frame.number,
            "actions": frame.actions,
            "rewards": frame.rewards,
            "view": frame.view,
            "text": frame.text,
            "clocks": [{"cpu_s": 0.002, "bank_s": 0.0, "moves": 1}] * 2,
        }
        browser.js(f"harena.append({json.dumps(event)})")
    assert browser.js("harena.frame()") == match.steps
    assert browser.text("#result") == ""
    result = {"winner": match.winner, "scores": list(match.scores), "status": "finished", "reason": match.reason}
    browser.js(f"harena.finish({json.dumps(result)})")
    assert browser.text("#result").startswith(f"{match.agents[match.winner or 0]} wins")
    assert browser.text("#where") == f"step {match.steps} of {match.steps}"
    browser.press("Home")
    browser.js(f"harena.append({json.dumps({'step': 99, 'view': frames[-1].view})})")
    assert browser.js("harena.frame()") == 0  # who looks back is left there
    assert quiet(browser)


class Strange(BaseGame):
    """No board is drawn for it, and its view is no number."""

    id = "strange-v1"
    seats = 1
    max_steps = 2

    def __init__(self) -> None:
        self.count = 0

    def observation_space(self, seat: int) -> spaces.Space:
        return spaces.Discrete(3)

    def action_space(self, seat: int) -> spaces.Space:
        return spaces.Text(200)

    def reset(self, seed: int) -> None:
        self.count = 0

    def to_move(self) -> Sequence[int]:
        return (0,) if self.count < 2 else ()

    def observe(self, seat: int) -> int:
        return self.count

    def step(self, actions: Any) -> dict[int, float]:
        self.count += 1
        return {0: 0.5}

    def outcome(self) -> Outcome:
        return Outcome((1.0,), None, "strange")

    def view(self) -> dict[str, Any]:
        return {"value": float("nan"), "words": HOSTILE, "count": self.count}

    def text(self) -> str:
        return f"count {self.count} {HOSTILE}"


def strange() -> Replay:
    game = Strange()
    recorder = ReplayRecorder(game, environment=game.id, seed=0, config={}, match_id="", agents=["one"])
    while game.to_move():
        game.step({0: HOSTILE})
        recorder.step({0: game.action_space(0).encode(HOSTILE)}, {0: 5})
    return Replay.load(
        recorder.finish(
            winner=None, scores=(1.0,), status="finished", reason="", seats=[("ok", "")], started_at=0, ended_at=1
        )
    )


def test_any_other_game_gets_its_text_and_its_state(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replay.registry, "make", lambda name, config=None: Strange())
    opened(browser, tmp_path, viewer.html(strange()))
    browser.press("ArrowRight")
    assert browser.text("#stage pre.text").startswith("count 1")
    browser.click("#stage summary")
    assert '"count": 1' in browser.text("#stage details pre")
    assert browser.text("#result").startswith("score 1")
    assert browser.js("document.querySelectorAll('img').length") == 0
    assert quiet(browser)


def test_a_view_of_another_shape_falls_back_to_the_general_one(browser: Browser, tmp_path: Path):
    page = viewer.html(played("tictactoe-v1"))
    data = embedded(page)
    for frame in data["frames"]:
        frame["view"] = {"other": 1}
    opened(browser, tmp_path, viewer.page(data))
    assert '"other": 1' in browser.text("#stage details pre")
    assert quiet(browser)


@pytest.mark.parametrize("environment", BUILT_IN)
def test_a_phone_does_not_scroll_sideways(browser: Browser, tmp_path: Path, environment: str):
    browser.size(375, 800)
    opened(browser, tmp_path, viewer.html(played(environment, names=()), logs=None))
    assert browser.js("document.documentElement.scrollWidth") == 375


def test_a_long_match_says_that_it_is_thinned_out(browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(viewer, "MAX_FRAMES", 50)
    opened(browser, tmp_path, viewer.html(played("pong-v1")))
    assert "one of every" in browser.text("#note")
