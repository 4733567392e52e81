"""Hidden evaluators: a second box that sees the files of a session, and not the other way round."""

from __future__ import annotations

from typing import Any

import pytest

from harena import BoxError, SandboxSession, Spec, SpecError
from harena.sessions.errors import Conflict, NotFound
from harena.testing.boxserver import BoxServer
from support.leaks import settle

Keywords = dict[str, Any]
FIRST, SECOND = "a" * 30, "b" * 30
HIDDEN = {"type": "FilePatch", "path": "hidden/answer", "content": "secret-42"}


def shell(line: str) -> dict[str, Any]:
    return {"command": ["sh", "-c", line], "timeout": 60}


def test_evaluator_sees_the_session_and_not_the_other_way_round(where: Keywords) -> None:
    with SandboxSession(**where) as session:
        session.execute([shell("mkdir src; echo 42 > src/result; touch mine")])
        result = session.evaluate([HIDDEN, shell("cat src/result hidden/answer; rm -r src; echo bad > mine")])
        assert result["status"]["stdout"] == "42\nsecret-42"
        assert (result["sessionId"], result["status"]["state"]) == (session.session_id, "Succeeded")
        seen = session.execute([shell("cat src/result; cat mine; ls -a; grep -rs secret-42 . /tmp")])["status"]
        assert "42\n" in seen["stdout"]
        assert "secret" not in seen["stdout"]
        assert "bad" not in seen["stdout"]
        assert "hidden" not in seen["stdout"]
        assert len(session.history()) == 2
        assert "secret-42" not in str(session.history()[0])


def test_evaluation_runs_once_for_its_id(where: Keywords) -> None:
    with SandboxSession(**where) as session:
        steps = [shell("cat /proc/sys/kernel/random/uuid")]
        first = session.evaluate(steps, operation_id="op")
        assert session.evaluate(steps, operation_id="op") == first
        assert session.evaluate(steps, operation_id="op-2")["status"]["stdout"] != first["status"]["stdout"]
        with pytest.raises(Conflict):
            session.execute(steps, operation_id="op")
        with pytest.raises(Conflict):
            session.evaluate([shell("true")], operation_id="op")


def test_evaluator_has_a_spec_of_its_own(where: Keywords) -> None:
    with SandboxSession(**where) as session:
        status = session.evaluate([shell("hostname")], spec=Spec(hostname="judge"))["status"]
        assert status["stdout"] == "judge\n"
        with pytest.raises(SpecError):
            session.evaluate([{"command": 1}])


def test_evaluator_of_another_owner_and_forbidden_specs_are_refused(owners: BoxServer) -> None:
    with SandboxSession(server=owners.url, token=FIRST) as session:
        thief = SandboxSession(server=owners.url, token=SECOND)
        thief.sandbox = session.sandbox
        with pytest.raises(NotFound):
            thief.evaluate([shell("true")])
        with pytest.raises(SpecError, match="--allow-image"):
            session.evaluate([shell("true")], image="python:3.12")
        with pytest.raises(SpecError, match="at most"):
            session.evaluate([shell("true")], operation_id="x" * 201)


def test_evaluators_count_as_boxes_and_leave_none(owners: BoxServer) -> None:
    """The server gives an owner six boxes."""
    sessions = [SandboxSession(server=owners.url, token=SECOND) for _ in range(6)]
    try:
        for session in sessions:
            session.create_sandbox()
        with pytest.raises(BoxError, match="at once"):
            sessions[0].evaluate([shell("true")])
        sessions[5].delete_sandbox()
        for _ in range(3):
            assert sessions[0].evaluate([shell("echo hi")])["status"]["stdout"] == "hi\n"
        assert settle(lambda: _creates(sessions[5]), True, within_s=60)
    finally:
        for session in sessions:
            session.delete_sandbox()


def _creates(session: SandboxSession) -> bool:
    try:
        session.create_sandbox()
    except BoxError:
        return False
    return True
