"""What `submit` sends: exactly the agent's own files."""

from __future__ import annotations

import io
import os
import zipfile

import pytest

from harena.client import calls, upload
from harena.errors import SpecError


@pytest.fixture
def agent(tmp_path):
    folder = tmp_path / "agent"
    (folder / "net").mkdir(parents=True)
    (folder / "agent.py").write_text("def act(o): return 0\n")
    (folder / "net" / "weights.txt").write_text("1 2 3")
    return folder


def names(data: bytes) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return archive.namelist()


def test_a_file_is_sent_under_its_name(agent):
    assert upload.parts(agent / "agent.py") == [upload.Part("agent.py", b"def act(o): return 0\n")]
    assert upload.parts([str(agent / "agent.py")])[0].name == "agent.py"


def test_bytes_are_a_zip_or_a_program():
    assert upload.parts(b"x = 1")[0].name == "submission.py"
    assert upload.parts(b"PK\x03\x04...")[0].name == "agent.zip"


def test_several_files_lie_side_by_side(agent):
    found = upload.parts([agent / "agent.py", agent / "net" / "weights.txt"])
    assert [part.name for part in found] == ["agent.py", "weights.txt"]


def test_two_files_of_one_name_are_refused(agent):
    (agent / "net" / "agent.py").write_text("x = 1")
    with pytest.raises(SpecError, match="two files are called"):
        upload.parts([agent / "agent.py", agent / "net" / "agent.py"])


def test_a_folder_among_files_is_refused(agent):
    with pytest.raises(SpecError, match="folder"):
        upload.parts([agent / "agent.py", agent / "net"])


def test_a_folder_becomes_a_zip_without_caches_and_hidden_files(agent):
    for name in ("__pycache__/agent.cpython-311.pyc", ".git/config", ".env", "node_modules/x.js", "old.pyc"):
        (agent / name).parent.mkdir(exist_ok=True)
        (agent / name).write_text("secret")
    (part,) = upload.parts(agent)
    assert part.name == "agent.zip"
    assert names(part.data) == ["agent.py", "net/weights.txt"]


def test_the_same_folder_makes_the_same_zip(agent):
    first = upload.zipped(agent)
    os.utime(agent / "agent.py", (1, 1))
    assert upload.zipped(agent) == first


def test_a_link_out_of_the_folder_is_refused_and_one_within_is_followed(agent, tmp_path):
    (agent / "copy.py").symlink_to(agent / "agent.py")
    assert "copy.py" in names(upload.zipped(agent))
    (tmp_path / "secret").write_text("mine")
    (agent / "data.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(SpecError, match=r"data\.txt is a link to a file outside"):
        upload.zipped(agent)


def test_a_link_to_a_folder_is_refused(agent, tmp_path):
    (tmp_path / "home").mkdir()
    (agent / "home").symlink_to(tmp_path / "home")
    with pytest.raises(SpecError, match="link to a folder"):
        upload.zipped(agent)


def test_a_pipe_is_refused_at_once(agent):
    os.mkfifo(agent / "pipe")
    with pytest.raises(SpecError, match="not a plain file"):
        upload.zipped(agent)
    with pytest.raises(SpecError, match="not a plain file"):
        upload.parts(agent / "pipe")


def test_what_is_too_large_is_refused(agent, monkeypatch):
    monkeypatch.setattr(upload, "MAX_TOTAL", 1000)
    with pytest.raises(SpecError, match="all files together: more than"):
        upload.parts(b"x" * 1001)
    (agent / "large").write_bytes(b"x" * 900)
    (agent / "larger").write_bytes(b"x" * 200)
    with pytest.raises(SpecError, match="larger: more than"):
        upload.zipped(agent)


def test_too_many_files_are_refused(agent, monkeypatch):
    monkeypatch.setattr(upload, "MAX_FILES", 1)
    with pytest.raises(SpecError, match="more than 1 files"):
        upload.zipped(agent)


def test_nothing_and_what_is_empty_or_missing_is_refused(agent, tmp_path):
    (agent / "empty.py").touch()
    for source in ([], agent / "empty.py", agent / "none.py", b""):
        with pytest.raises(SpecError):
            upload.parts(source)
    (tmp_path / "bare").mkdir()
    with pytest.raises(SpecError, match="no files"):
        upload.parts(tmp_path / "bare")


@pytest.mark.parametrize("name", ["", "..", "a/b", "a?b", "a#b", "é", "x" * 65, "a\n"])
def test_an_id_that_would_lead_elsewhere_is_refused(name):
    for verb in (calls.status, calls.delete, calls.match, calls.tournament, calls.revoke_key):
        with pytest.raises(SpecError, match="id of a"):
            verb(name)


@pytest.mark.parametrize("name", ["", "..", "a/../b", "a//b", "/a", "a/."])
def test_an_environment_that_would_lead_elsewhere_is_refused(name):
    with pytest.raises(SpecError, match="environment"):
        calls.environment(name)


def test_an_environment_with_odd_characters_stays_one_path():
    assert calls.environment("ALE/Pong-v5").path == "/v1/environments/ALE/Pong-v5"
    assert calls.environment("a?b#c d").path == "/v1/environments/a%3Fb%23c%20d"


def test_bytes_that_are_no_text_are_refused_before_they_are_sent(agent):
    odd = "caf\udce9"
    (agent / odd).write_text("x")
    for make in (lambda: calls.leaderboard(odd), lambda: upload.parts(agent), lambda: upload.parts(agent / odd)):
        with pytest.raises(SpecError, match="UTF-8"):
            make()
