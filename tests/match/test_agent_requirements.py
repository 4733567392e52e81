"""A requirements.txt of an agent: installed where the host enables it, else ignored and named."""

from __future__ import annotations

from pathlib import Path

import pytest

from harena.match.agent import load as agents
from harena.match.result import AgentCode, MatchSpec, MatchStatus, SeatResult, SeatStatus
from harena.match.run.play import Rack, play
from support.wheels import make_wheel

PROBE = "print('own numpy, seccomp', open('/proc/self/status').read().split('Seccomp:')[1].split()[0])\n"


def agent(requirements: str, *, preamble: str = "") -> AgentCode:
    source = f"{preamble}\nimport random\ndef act(observation):\n    return random.randrange(7)\n"
    files = {"agent.py": source.encode(), "requirements.txt": requirements.encode()}
    return AgentCode(name="first", files=files)


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    make_wheel(folder, "hero_base", "1.5", {"hero_base.py": "print('imported')\nX = 15\n"})
    make_wheel(folder, "numpy", "99.0", {"numpy/__init__.py": PROBE, "numpy/random.py": ""})
    monkeypatch.setenv("HARENA_PACKAGES", str(tmp_path / "packages"))
    monkeypatch.setenv("HARENA_PACKAGES_MAX_MB", "64")
    monkeypatch.setenv("HARENA_PACKAGE_INDEX", str(folder))
    monkeypatch.setenv("HARENA_AGENT_REQUIREMENTS", "1")


def first_seat(code: AgentCode) -> SeatResult:
    other = AgentCode(name="other", files={"agent.py": b"def act(observation):\n    return 0\n"})
    with Rack() as rack:
        spec = MatchSpec(environment="connect_four", agents=(code, other), seed=1)
        play(spec, rack=rack)
        result = play(spec, rack=rack)  # in what the first match left
        assert result.status is MatchStatus.FINISHED
        assert not [seat for seat in rack._ahead if seat.box.spec.requirements]  # pyright: ignore[reportPrivateUsage]
    return result.seats[0]


def test_an_agent_has_its_requirements_where_the_host_enables_them() -> None:
    seat = first_seat(agent("hero-base  # mine\n", preamble="import hero_base\nassert hero_base.X == 15"))
    assert seat.status in (SeatStatus.OK, SeatStatus.ILLEGAL)
    assert seat.log.startswith("imported")


def test_without_the_setting_they_are_ignored_and_the_check_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARENA_AGENT_REQUIREMENTS")
    code = agent("hero-base\n", preamble="import hero_base")
    assert first_seat(code).status is SeatStatus.LOAD
    warnings = agents.lint(code)
    assert any("HARENA_AGENT_REQUIREMENTS" in warning for warning in warnings)
    assert any("hero_base" in warning for warning in warnings)


def test_the_check_of_an_agent_does_not_miss_what_will_be_installed() -> None:
    assert agents.lint(agent("hero-base\n", preamble="import hero_base")) == []


@pytest.mark.parametrize(("text", "said"), [("-r /etc/passwd", "line 1"), ("nosuchthing", "nosuchthing")])
def test_requirements_that_cannot_be_installed_are_a_fault_of_the_agent(text: str, said: str) -> None:
    seat = first_seat(agent(text))
    assert seat.status is SeatStatus.LOAD
    assert said in seat.reason


def test_code_of_requirements_runs_only_in_the_confined_process() -> None:
    """The harness imports numpy. In a box with an agent's own numpy, the warm interpreter must not."""
    assert first_seat(agent("numpy==99.0\n")).log.startswith("own numpy, seccomp 2\n")
