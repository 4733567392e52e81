"""harena gradio: the page serves, asks nothing of anybody else, and its buttons work against a real arena."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest

from harena.client import gradio_app
from harena.errors import SpecError
from support import browser
from support.client_world import CARTPOLE, LEFT, Served

START_S = 60


@pytest.fixture(scope="module")
def page(served: Served, tmp_path_factory):
    """Its address. A process of its own, as people run it."""
    folder = tmp_path_factory.mktemp("gradio")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environ = {**os.environ, "HARENA_CONFIG": str(folder), "GRADIO_TEMP_DIR": str(folder / "uploads")}
    command = [sys.executable, "-m", "harena.cli", "gradio", "--url", served.url, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environ)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, process.stdout and process.stdout.read()
            assert time.monotonic() < deadline
            try:
                if httpx.get(url, timeout=5).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0, output


def press(page: str, name: str, *values: object) -> list[object]:
    """What a button answers, over gradio's own API."""
    event = httpx.post(f"{page}/gradio_api/call/{name}", json={"data": list(values)}, timeout=20)
    event.raise_for_status()
    with httpx.stream("GET", f"{page}/gradio_api/call/{name}/{event.json()['event_id']}", timeout=20) as answer:
        text = "".join(answer.iter_text())
    kind, data = re.findall(r"event: (\w+)\ndata: (.*)", text)[-1]
    if kind != "complete":
        raise AssertionError(text)
    return json.loads(data)


def upload(page: str, source: str, name: str = "agent.py") -> dict[str, object]:
    answer = httpx.post(f"{page}/gradio_api/upload", files={"files": (name, source.encode())}, timeout=20)
    answer.raise_for_status()
    return {"path": answer.json()[0], "orig_name": name, "meta": {"_type": "gradio.FileData"}}


def test_an_agent_is_submitted_looked_at_and_on_the_board(page):
    told, submission, who = press(page, "submit", [upload(page, LEFT)], CARTPOLE, "from the page", "greta", "", "", "")
    assert re.search(r"greta#[0-9a-f]{8}/from the page v1", str(told))
    deadline = time.monotonic() + 30
    while "ranked: " not in (state := str(press(page, "status", submission, "", who)[0])):
        assert time.monotonic() < deadline, state
        time.sleep(0.1)
    title, table = press(page, "leaderboard", CARTPOLE)
    assert str(title).startswith("CartPole-v1, verified")
    assert any(row[1].partition("#")[0] == "greta" for row in table["data"])


def test_of_several_files_the_chosen_one_is_started(page):
    helper, start = "SIDE = 0\n", "import helper\ndef act(observation):\n    return helper.SIDE\n"
    files = [upload(page, helper, "helper.py"), upload(page, start, "start.py")]
    told, submission, who = press(page, "submit", files, CARTPOLE, "several", "", "", "", "start.py")
    assert "several v1" in str(told)
    deadline = time.monotonic() + 60
    while "ranked: " not in (state := str(press(page, "status", submission, "", who)[0])):
        assert time.monotonic() < deadline, state
        time.sleep(0.1)


def test_the_reason_of_a_failure_is_for_who_sent_it(page):
    crashing = "def act(observation):\n    raise ValueError('no idea')\n"
    _, submission, who = press(page, "submit", [upload(page, crashing)], CARTPOLE, "crash", "", "", "", "")
    deadline = time.monotonic() + 30
    while "no idea" not in (mine := str(press(page, "status", submission, "", who)[0])):
        assert time.monotonic() < deadline, mine
        time.sleep(0.1)
    assert "no idea" not in str(press(page, "status", submission, "", "")[0])


def test_a_mistake_is_a_sentence(page):
    assert "nothing to submit" in str(press(page, "submit", [], CARTPOLE, "", "", "", "", "")[0])
    assert "not the id of" in str(press(page, "status", "<script>", "", "")[0])
    assert "key" in str(press(page, "submit", [upload(page, LEFT)], CARTPOLE, "", "", "hrn_wrong", "", "")[0])
    title, table = press(page, "leaderboard", "no such environment")
    assert "no such environment" in str(title)
    assert table["data"] in ([], [[""] * len(gradio_app.HEAD)])


def test_a_file_of_the_host_cannot_be_named_as_an_upload(page, tmp_path):
    (tmp_path / "secret.py").write_text(LEFT)
    stolen = {"path": str(tmp_path / "secret.py"), "meta": {"_type": "gradio.FileData"}}
    with pytest.raises(AssertionError):
        press(page, "submit", [stolen], CARTPOLE, "", "", "", "", "")


def test_the_page_asks_nothing_of_anybody_else(page):
    html = httpx.get(page).text
    loads = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="([^"]+)"', html)
    assert loads
    assert not [place for place in loads if re.match(r"(https?:)?//", place)]
    assert "fonts.googleapis.com" not in html
    assert "fonts.gstatic.com" not in html
    settings = httpx.get(f"{page}/config").json()
    assert settings["analytics_enabled"] is False
    assert not settings.get("stylesheets")


@pytest.mark.services
@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_a_browser_that_shows_the_page_asks_nobody_else(page):
    with browser.started() as chromium:
        chromium.open(page)
        deadline = time.monotonic() + 30
        while "CartPole-v1, verified" not in str(
            chromium.js("[...document.querySelectorAll('textarea')].map(box => box.value)")
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        asked = {place for place in chromium.requests() if not place.startswith(("chrome:", "data:", "blob:"))}
    assert asked
    assert not {place for place in asked if not place.startswith(f"{page}/")}


def test_a_port_that_is_taken_is_one_line(page, served):
    command = [sys.executable, "-m", "harena.cli", "gradio", "--url", served.url, "--port", page.rpartition(":")[2]]
    found = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert found.returncode == 2
    assert "--port" in found.stderr
    assert found.stderr.count("\n") == 1


def test_a_key_is_not_lent_to_the_whole_network():
    with pytest.raises(SpecError, match="everybody"):
        gradio_app.serve(url=None, key="hrn_1", host="0.0.0.0", port=0)
