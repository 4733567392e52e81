"""Values in a notebook: what a stranger wrote is text there, never markup, and it has a bounded size."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harena import notebook, schema
from harena.match import registry
from harena.match.evaluate import AgentEvaluation
from harena.match.replay.replay import Replay, ReplayFrame, ReplayRecorder
from harena.match.result import MatchResult, MatchStatus, SeatResult, SeatStatus
from harena.match.series.contest import Contest, Finished
from harena.match.series.schedule import Pairing
from harena.match.series.tournament import Fixed
from support import browser as browsers
from support.browser import Browser

ATTACK = (
    "</td></table></pre></iframe></textarea></title></style></script>"
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "\" onload=\"document.title='owned'\" ' <svg/onload=document.title='owned'>"
    "&lt;img src=x onerror=document.title='owned'&gt;\u202e\u2028\0\x1b]0;owned\x07"
)
ALLOWED = {"table": [], "caption": [], "tr": [], "th": [], "td": [], "pre": [], "iframe": ["sandbox", "srcdoc", "style", "title"]}  # fmt: skip


def result() -> MatchResult:
    seat = SeatResult(
        agent=ATTACK,
        status=SeatStatus.CRASH,
        reason=ATTACK,
        score=-1.0,
        cpu_s=0.25,
        moves=3,
        start_s=0.1,
        log=ATTACK,
    )
    return MatchResult(
        match_id=ATTACK,
        environment=ATTACK,
        seed=1,
        status=MatchStatus.FINISHED,
        winner=1,
        reason=ATTACK,
        steps=3,
        wall_s=1.0,
        seats=(seat, seat),
        error=ATTACK,
    )


def evaluation() -> AgentEvaluation:
    pairing = Pairing(seats=(0, 1), seed=1, round=1, number=0)
    contest = Contest(Fixed(2, [pairing]), lambda pairing: None)  # type: ignore[arg-type, return-value]
    contest.games.append(Finished(pairing, result()))
    return AgentEvaluation(ATTACK, [ATTACK, "b"], contest, 1)


def board() -> schema.Board:
    entry = schema.BoardEntry(rank=1, owner=ATTACK, algorithm=ATTACK, score=1523.25, low=1400.0, games=4)
    return schema.Board(env_id=ATTACK, board=ATTACK, total=1, entries=(entry,))


def replay() -> Replay:
    game = registry.make("tictactoe-v1")
    game.reset(3)
    recorder = ReplayRecorder(game, environment=game.id, seed=3, config={}, match_id=ATTACK, agents=[ATTACK, "b"])
    outcome = game.forfeit([0])
    return Replay.load(
        recorder.finish(
            winner=outcome.winner,
            scores=outcome.scores,
            status="finished",
            reason=ATTACK,
            seats=[("crash", ATTACK), ("ok", "")],
            started_at=1e9,
            ended_at=1e9,
            forfeited=[0],
        )
    )


def frame() -> ReplayFrame:
    return ReplayFrame(
        number=1, actions={}, rewards={}, observations={}, view={}, text=f"\x1b[31m{ATTACK}", cpu_us={}, done=True
    )


VALUES = {"result": result, "evaluation": evaluation, "board": board, "replay": replay, "frame": frame}


class Markup(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, sorted(name for name, _ in attrs)))


@pytest.mark.parametrize("what", VALUES)
def test_nothing_that_a_stranger_wrote_becomes_markup(what: str) -> None:
    shown = VALUES[what]()._repr_html_()
    markup = Markup()
    markup.feed(shown)
    assert markup.found
    assert [(tag, names) for tag, names in markup.found if ALLOWED.get(tag) != names] == []
    assert not {"\0", "\x1b"} & set(shown)
    assert what == "replay" or "\u202e" not in shown  # the page of a replay is a frame of its own


def test_a_replay_that_cannot_be_run_here_says_so_in_text() -> None:
    record = replay()
    record.environment = "<script>nosuch</script>"
    shown = record._repr_html_()
    assert shown.startswith("<pre>This replay cannot be shown: ")
    assert "<script" not in shown


def test_a_board_of_a_hostile_server_has_a_bounded_size() -> None:
    entry = schema.BoardEntry(rank=1, owner="<" * 1_000_000, score=1.0)
    shown = schema.Board(env_id="x" * 10_000_000, entries=(entry,) * 5000)._repr_html_()
    assert len(shown) < 5 * 200 * (notebook.MAX_ROWS + 2)
    assert "4000 more rows are not shown" in shown


def test_numbers_are_written_as_people_do() -> None:
    shown = notebook.table("", ["n"], [[1523.25], [500.0], [0.3333333], [0.0], [1e-9], [float("nan")], [None], [7]])
    cells = ["1523.25", "500", "0.333", "0", "1e-09", "nan", "", "7"]
    assert "".join(f"<tr><td>{cell}</td></tr>" for cell in cells) in shown


@pytest.fixture
def browser() -> Iterator[Browser]:
    if browsers.missing():
        pytest.skip(browsers.missing())
    with browsers.started() as found:
        yield found


def test_no_attack_runs_in_a_page_that_shows_every_value(browser: Browser, tmp_path: Path) -> None:
    body = "".join(value()._repr_html_() for value in VALUES.values())
    page = tmp_path / "page.html"
    shell = "<!doctype html><meta charset=utf-8><title>notebook</title><body>{}<p id=end>end</p>"
    page.write_text(shell.format(f"<table><tr><td>{ATTACK}</td></tr></table>"))
    browser.open(page)
    assert browser.js("document.title") == "owned"  # the attack works where nothing is escaped
    page.write_text(shell.format(body))
    browser.open(page)
    assert browser.text("#end") == "end"
    assert browser.js("document.title") == "notebook"
    assert browser.js("document.querySelectorAll('script, img, svg').length") == 0
    own = ("/page.html", "about:srcdoc")
    assert [url for url in browser.requests() if not url.endswith(own) and not url.startswith("chrome")] == []
    assert "owned" in browser.text("table")  # it is there to read
