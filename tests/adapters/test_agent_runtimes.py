"""Environments for agents of other frameworks, on the real packages. They are too large for the dev extra: run these with

python -m venv /tmp/v && /tmp/v/bin/pip install -e . pytest pytest-timeout anyio swe-rex mini-swe-agent
/tmp/v/bin/pytest tests/adapters/test_agent_runtimes.py
"""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
async def runtime():
    pytest.importorskip("swerex", reason="host: SWE-ReX is not installed: pip install swe-rex")
    from harena.adapters.swe_rex import HarenaDeployment

    deployment = HarenaDeployment()
    await deployment.start()
    yield deployment.runtime
    await deployment.stop()


async def test_a_session_of_swe_rex_keeps_its_variables_and_folder(runtime):
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

    await runtime.create_session(CreateBashSessionRequest())
    await runtime.run_in_session(BashAction(command="export A=7; cd /tmp"))
    seen = await runtime.run_in_session(BashAction(command="echo $A $PWD; (exit 3)", check="silent"))
    assert (seen.output, seen.exit_code) == ("7 /tmp", 3)


async def test_failures_are_those_that_swe_rex_names(runtime):
    from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SessionDoesNotExistError
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

    with pytest.raises(SessionDoesNotExistError):
        await runtime.run_in_session(BashAction(command="true"))
    await runtime.create_session(CreateBashSessionRequest())
    with pytest.raises(NonZeroExitCodeError):
        await runtime.run_in_session(BashAction(command="false"))
    with pytest.raises(CommandTimeoutError):
        await runtime.run_in_session(BashAction(command="sleep 60", timeout=1))


async def test_swe_rex_moves_files_and_runs_commands(runtime, tmp_path):
    from swerex.runtime.abstract import Command, ReadFileRequest, UploadRequest, WriteFileRequest

    await runtime.write_file(WriteFileRequest(path="/workspace/a.txt", content="hi"))
    assert (await runtime.read_file(ReadFileRequest(path="/workspace/a.txt"))).content == "hi"
    (tmp_path / "b.txt").write_text("there")
    await runtime.upload(UploadRequest(source_path=str(tmp_path), target_path="/workspace/up"))
    done = await runtime.execute(Command(command=["sh", "-c", "cat up/b.txt; echo $X"], env={"X": "1"}))
    assert (done.stdout, done.exit_code) == ("there1\n", 0)


@pytest.fixture
def environment():
    pytest.importorskip("minisweagent", reason="host: mini-swe-agent is not installed: pip install mini-swe-agent")
    from harena.adapters.mini_swe_agent import HarenaEnvironment

    made = HarenaEnvironment(timeout=2)
    yield made
    made.cleanup()


def test_commands_of_mini_swe_agent_run_in_a_box(environment, tmp_path):
    done = environment.execute({"command": f"echo hi; echo err >&2; ls {tmp_path}; exit 4"})
    assert done["returncode"] == 4
    assert done["output"].startswith("hi\nerr\n")
    assert "No such file" in done["output"]
    assert environment.execute({"command": "sleep 60"})["extra"]["exception_type"] == "TimeoutError"


def test_mini_swe_agent_is_told_of_a_submission(environment):
    from minisweagent.exceptions import Submitted

    with pytest.raises(Submitted):
        environment.execute({"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo patch"})
