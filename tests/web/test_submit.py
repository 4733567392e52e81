"""From a file in somebody's hand to a line on the board."""

from __future__ import annotations

from harena.arena.settings import EnvironmentSettings
from support.arenas import BALANCE, ENV, FIRST, LADDER, LEAN

CRASH = "def act(observation):\n    print('about to divide')\n    return 1 // 0\n"
STATE = "document.querySelector('main .status')?.dataset.state"


def filled(browser, *, owner, algorithm, env_id=ENV):
    browser.go("/submit")
    browser.js(f"document.querySelector('#env').value = {env_id!r}")
    browser.clear("#algorithm")
    browser.type("#algorithm", algorithm)
    browser.type("#owner", owner)


def test_an_agent_dropped_on_the_page_is_ranked_and_on_the_board(browser, site):
    filled(browser, owner="dora", algorithm="Dropped")
    browser.drop(".drop", {"agent.py": BALANCE})
    browser.until_text("agent.py", ".files")
    browser.button("Submit", "form")
    browser.until(f"{STATE} === 'ranked'", 30)
    assert browser.text("main .status-line").startswith("Ranked with a score of")
    browser.button("Dropped v1", "main")
    browser.until_text("yours", "h1")
    practice = EnvironmentSettings.parse(site.arena.store.environments.get(ENV).settings).practice_episodes
    browser.until(f"document.querySelectorAll('.practice tbody tr').length === {practice}")
    browser.until_text("Hidden until the season ends")
    assert browser.js("document.querySelector('.plot .dot')") is None
    browser.button("Choose for the finals")
    browser.until_text("You have chosen this submission for the finals")
    browser.button("Withdraw from the finals")
    browser.until_text("Choose for the finals")
    browser.go(f"/env/{ENV}")
    browser.until_text("Dropped", "#board")
    assert "no key" in browser.text("#board")
    assert browser.complaints() == []


def test_several_files_go_by_the_file_input_with_the_one_to_start(browser, tmp_path):
    (tmp_path / "policy.py").write_text("def decide(angle):\n    return int(angle > 0)\n")
    (tmp_path / "player.py").write_text(
        "from policy import decide\ndef act(observation):\n    return decide(observation[2])\n"
    )
    filled(browser, owner="dora", algorithm="Two files")
    browser.type("#picked", f"{tmp_path / 'policy.py'}\n{tmp_path / 'player.py'}")
    browser.until("!document.querySelector('#main-file').disabled")
    browser.js("document.querySelector('#main-file').value = 'player.py'")
    browser.button("Submit", "form")
    browser.until(f"{STATE} === 'ranked'", 30)


def test_an_agent_for_the_ladder_enters_it_and_plays(browser):
    filled(browser, owner="dora", algorithm="Climber", env_id=LADDER)
    browser.drop(".drop", {"climber.py": FIRST})
    browser.button("Submit", "form")
    browser.until(f"{STATE} === 'ranked'", 30)
    browser.button("Climber v1", "main")
    browser.until_text("Running rating", timeout_s=30)
    browser.until_text("Opponents")
    browser.until("document.querySelectorAll('.shares').length >= 1")
    browser.until("document.querySelector('.plot .band')")
    browser.button("Challenge", "main")
    browser.until("location.pathname.startsWith('/match/')")
    browser.until_text("unrated challenge")


def test_a_failing_agent_shows_its_owner_why_and_its_log_and_nobody_else(browser):
    filled(browser, owner="dora", algorithm="Crashes")
    browser.drop(".drop", {"agent.py": CRASH})
    browser.button("Submit", "form")
    browser.until(f"{STATE} === 'failed'", 30)
    browser.until_text("ZeroDivisionError", ".reason")
    browser.until_text("about to divide", ".log")
    assert browser.js("document.querySelector('.steps .bad').innerText") == "Failed"
    address = browser.js("document.querySelector('main .status').closest('section').querySelector('h2 a').pathname")
    browser.forget()
    browser.open(browser.origin + address)
    browser.until("document.querySelector('main h1')")
    assert "ZeroDivisionError" not in browser.js("document.body.innerText")
    assert browser.js("document.querySelector('.log')") is None


def test_what_is_refused_is_explained_where_it_was_sent(browser):
    browser.go("/submit")
    browser.button("Submit", "form")
    browser.until_text("Choose a .py file", "form [role=alert]")
    browser.drop(".drop", {"notes.txt": "no agent"})
    browser.button("Submit", "form")
    browser.until_text(".py", "form .problem")
    assert browser.js("document.querySelector('form button.primary').disabled") is False


def test_an_owner_cancels_evaluates_again_and_deletes(browser):
    filled(browser, owner="dora", algorithm="Mine")
    browser.drop(".drop", {"agent.py": LEAN})
    browser.button("Submit", "form")
    browser.until(f"{STATE} === 'ranked'", 30)
    browser.button("Mine v1", "main")
    browser.until_text("yours", "h1")
    browser.js("document.querySelector('h1').old = true")
    browser.button("Evaluate again")
    browser.until(f"!document.querySelector('h1').old && {STATE} === 'ranked'", 30)
    browser.button("Delete")
    browser.confirm("Keep it as it is")
    browser.button("Delete")
    browser.confirm("Delete")
    browser.until("location.pathname === '/'")
    browser.go(f"/env/{ENV}?user=dora&algorithm=Mine")
    browser.until_text("No agent matches the filter", "#board")


def test_pasted_code_is_submitted_like_a_file(browser):
    browser.go("/submit")
    browser.js("document.querySelector('.paste').open = true")
    browser.button("Use this code", ".paste")
    browser.until_text("Type some code", ".paste")
    browser.js("document.querySelector('#paste').value = 'def act(observation):\\n    return 0\\n'")
    browser.button("Use this code", ".paste")
    browser.until_text("agent.py", ".files", 60)
    browser.button("Submit", "form")
    browser.until_text("Custom v", "main", 60)
