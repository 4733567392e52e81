"""inspect_ai's own checks of a sandbox provider, on boxes without and with an image, and a whole evaluation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("inspect_ai", reason="inspect_ai is not installed: pip install 'harena[inspect]'")

from inspect_ai import Task, eval_async, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import Generate, TaskState, solver
from inspect_ai.util import SandboxUnavailableError, sandbox
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from harena.adapters.inspect import HarenaConfig, HarenaSandbox
from harena.images import ImageStore

DEBIAN = os.environ.get("HARENA_TEST_DEBIAN", "")
IMPOSSIBLE = {
    "plain": {"test_exec_as_user": "a box without an image has one user"},
    "image": {
        "test_read_file_not_allowed": "root of the image may read every file",
        "test_write_text_file_without_permissions": "root of the image may write every file",
        "test_write_binary_file_without_permissions": "root of the image may write every file",
    },
}
WAITS = ("test_exec_timeout_kills_process", "test_exec_timeout_kills_child_processes")
"""They sleep for several seconds each."""

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def debian(tmp_path_factory):
    if not DEBIAN:
        pytest.skip("HARENA_TEST_DEBIAN does not name the tar of a Debian root (debootstrap makes one)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_IMAGES", os.environ.get("HARENA_TEST_STORE") or str(tmp_path_factory.mktemp("store")))
        store = ImageStore.default()
        found = store.find("debian:test") or store.import_file(DEBIAN, name="debian:test", is_root=True)[0]
        yield found.reference


@pytest.fixture(params=["plain", pytest.param("image", marks=[pytest.mark.thorough, pytest.mark.root])])
async def sandbox_env(request):
    reason = IMPOSSIBLE[request.param].get(request.node.originalname)
    if reason:
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    env = await HarenaSandbox.create(request.getfixturevalue("debian") if request.param == "image" else None)
    yield env
    await env.box.close()


for _name in WAITS:
    globals()[_name] = pytest.mark.thorough(globals()[_name])


@solver
def writes_and_reads():
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        await sandbox().write_file("answer.py", "print(6 * 7)")
        result = await sandbox().exec(["python3", "answer.py"])
        state.output.completion = result.stdout
        return state

    return solve


@task
def arithmetic() -> Task:
    return Task(
        dataset=[Sample(input="6 * 7?", target="42")],
        solver=writes_and_reads(),
        scorer=includes(),
        sandbox="harena",
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # inspect_ai leaves streams open
async def test_an_evaluation_finds_the_provider_by_its_entry_point(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    logs = await eval_async(arithmetic(), model="mockllm/model", log_dir=str(tmp_path))
    assert logs[0].status == "success", logs[0].error
    assert logs[0].results.scores[0].metrics["accuracy"].value == 1.0


async def test_a_lost_box_is_never_the_output_of_a_command():
    env = await HarenaSandbox.create()
    await env.box.close()
    with pytest.raises(SandboxUnavailableError):
        await env.exec(["true"])
    with pytest.raises(SandboxUnavailableError):
        await env.read_file("any")


async def test_a_command_cannot_exceed_the_memory_that_the_config_gives():
    env = await HarenaSandbox.create(HarenaConfig(memory_mb=64))
    try:
        result = await env.exec(["python3", "-c", "x = 'a' * 10**9"])
        assert not result.success
    finally:
        await env.box.close()


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="extra"):
        HarenaSandbox.config_deserialize({"privileged": True})
