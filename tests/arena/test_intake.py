"""Whatever is handed in becomes an agent or a script, or is refused in words, before anything of it is written or run."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from pathlib import Path

import pytest

from harena.arena.db.models import SubmissionKind
from harena.arena.submissions.intake import Intake, IntakeError, Upload, as_script, digest, take_in
from harena.arena.submissions.script import ScriptCode
from harena.match.agent.load import ArchiveLimits
from harena.match.result import AgentCode

AGENT = b"class Agent:\n    def act(self, observation): return 0\n"
SCRIPT = b'import json, sys\nprint(json.dumps({"score": 1.0}))\n'
SMALL = ArchiveLimits(total_bytes=1 << 20, file_bytes=1 << 18, files=10, depth=4)


def one(data: bytes, name: str = "mine.py", **options: str) -> Intake:
    return take_in([Upload(name=name, data=data)], **options)


def several(main_file: str = "", **files: bytes) -> Intake:
    return take_in([Upload(name=f"{name}.py", data=data) for name, data in files.items()], main_file=main_file)


def packed(files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name) if compression == zipfile.ZIP_STORED else name, data)
    return stream.getvalue()


def refused(*uploads: Upload, main_file: str = "", limits: ArchiveLimits = SMALL) -> str:
    with pytest.raises(IntakeError) as raised:
        take_in(uploads, main_file=main_file, limits=limits)
    text = str(raised.value)
    assert "Error" not in text
    assert "\n" not in text
    assert text.isprintable()
    return text


# Agent or script


@pytest.mark.parametrize(
    "source",
    [
        AGENT,
        b"def act(observation): return 0\n",
        b"def create_agent(): ...\n",
        b"class Agent:\n    def get_action(self, o): return 0\n",
        b"class Agent:\n    def predict(self, o): return 0, None\n",
        b"def agent(observation, config): return 0\n",
        b"agent = lambda observation: 0\n",
        b"from policy import agent\n",
        b"act = load('weights')\n",
        b"import sys\nclass Agent:\n    def act(self, o): return 0\nif __name__ == '__main__':\n    print('{\"score\": 1e9}')\n",
    ],
)
def test_a_main_file_that_offers_the_agent_contract_is_verified(source: bytes) -> None:
    taken = one(source)
    assert taken.kind is SubmissionKind.VERIFIED
    assert isinstance(taken.code, AgentCode)
    assert (taken.code.entry, taken.code.files) == ("agent.py", {"agent.py": source})


@pytest.mark.parametrize(
    "source",
    [
        SCRIPT,
        b"class Agent:\n    def train(self): return 0\nprint('{\"score\": 1}')\n",
        b"class Trainer:\n    def act(self): return 0\n",
        b"agent = Trainer()\nprint('{\"score\": 1}')\n",
        b"from math import *\nprint('{\"score\": 1}')\n",
    ],
)
def test_any_other_is_a_script(source: bytes) -> None:
    taken = one(source)
    assert taken.kind is SubmissionKind.SELF_REPORTED
    assert isinstance(taken.code, ScriptCode)
    assert (taken.code.main, taken.code.files) == ("submission.py", {"submission.py": source})


def test_who_may_have_meant_an_agent_is_told_how_to_be_verified() -> None:
    assert "to be verified, define" in one(b"agent = Trainer()\n").warnings[-1]
    assert "to be verified, define" in one(b"from policy import *\n").warnings[-1]
    assert one(SCRIPT).warnings == ()


def test_a_syntax_error_is_neither() -> None:
    text = refused(Upload(name="mine.py", data=b"x = 1\ndef act(:\n"))
    assert text.startswith("mine.py line 2")


def test_a_script_is_not_warned_of_packages_that_it_has() -> None:
    pytest.importorskip("gymnasium")
    taken = one(b"import gymnasium as gym\nimport numpy\nimport torch\nfrom gymnasium.spaces import Box\n")
    assert [text for text in taken.warnings if "gymnasium" in text] == []
    assert "imports torch" in taken.warnings[0]
    assert taken.warnings[0].startswith("submission.py line 3")


# Several files, zips


def test_the_main_file_says_what_several_files_are() -> None:
    assert several("play.py", play=AGENT, train=SCRIPT).kind is SubmissionKind.VERIFIED
    taken = several("train.py", play=AGENT, train=SCRIPT)
    assert isinstance(taken.code, ScriptCode)
    assert (taken.code.main, sorted(taken.code.files)) == ("train.py", ["play.py", "train.py"])


@pytest.mark.parametrize("main", ["agent", "main", "submission"])
def test_usual_names_need_no_main_file(main: str) -> None:
    code = several(**{main: SCRIPT, "helper": b"x = 1\n"}).code
    assert isinstance(code, ScriptCode)
    assert code.main == f"{main}.py"


def test_without_a_main_file_the_author_is_asked() -> None:
    uploads = [Upload(name="a.py", data=AGENT), Upload(name="b.py", data=AGENT)]
    text = refused(*uploads)
    assert "a.py, b.py" in text
    assert "main_file" in text


@pytest.mark.parametrize("main", ["c.py", "../a.py", "/etc/passwd", "a.txt", "A.PY", "a.py\0", "\x1b[31m.py"])
def test_a_main_file_must_be_one_of_the_files(main: str) -> None:
    uploads = [Upload(name="a.py", data=AGENT), Upload(name="a.txt", data=b"")]
    assert "a.py" in refused(*uploads, main_file=main)


def test_a_single_file_may_name_itself_as_main_file() -> None:
    assert one(AGENT, main_file="mine.py") == one(AGENT)
    assert "main_file 'other.py' is not mine.py" in refused(Upload(name="mine.py", data=AGENT), main_file="other.py")


def test_a_zip_may_have_a_main_file_folders_and_a_top_folder() -> None:
    data = packed({"mine/play.py": AGENT, "mine/train.py": SCRIPT, "mine/lib/__init__.py": b""})
    taken = one(data, "mine.zip", main_file="play.py")
    assert isinstance(taken.code, AgentCode)
    assert (taken.code.entry, sorted(taken.code.files)) == ("play.py", ["lib/__init__.py", "play.py", "train.py"])


def test_commands_in_a_zip_are_verified() -> None:
    manifest = json.dumps({"command": ["sh", "a.sh"]}).encode()
    code = one(packed({"agent.json": manifest, "a.sh": b"echo"}), "a.zip").code
    assert isinstance(code, AgentCode)
    assert code.command == ("sh", "a.sh")


# Digests


def test_the_same_content_has_the_same_digest_however_it_was_packed() -> None:
    files = {"agent.py": AGENT, "helper.py": b"x = 1\n"}
    ways = [
        one(packed(files), "a.zip"),
        one(packed(dict(reversed(files.items())), zipfile.ZIP_DEFLATED), "b.zip"),
        one(packed({f"top/{name}": data for name, data in files.items()}), "c.zip"),
        several(agent=AGENT, helper=b"x = 1\n"),
        several("agent.py", helper=b"x = 1\n", agent=AGENT),
    ]
    assert len({taken.digest for taken in ways}) == 1
    assert one(AGENT, "a.py").digest == one(AGENT, "b.py").digest == one(packed({"agent.py": AGENT}), "c.zip").digest


def test_another_content_path_or_main_file_has_another_digest() -> None:
    ways = [
        one(AGENT),
        one(AGENT + b"\n"),
        several("a.py", a=AGENT, b=AGENT),
        several("b.py", a=AGENT, b=AGENT),
        one(SCRIPT),
    ]
    assert len({taken.digest for taken in ways}) == len(ways)
    assert digest({"a": b"bc"}, ["x"]) != digest({"ab": b"c"}, ["x"])
    assert digest({"a": b"", "b": b""}, ["x"]) != digest({"a": b""}, ["x", "b", ""])


# What is refused


@pytest.mark.parametrize(
    "name",
    [
        "../agent.py",
        "a/../../b.py",
        "/etc/cron.d/x",
        "C:/x.py",
        "a\\..\\b.py",
        "a\0.py",
        "a\n.py",
        "\x1b[2J.py",
        "x" * 300 + ".py",
        "a/b/c/d/e.py",
        "\udce4.py",
    ],
)
def test_a_hostile_name_among_several_files_is_refused(name: str) -> None:
    refused(Upload(name="agent.py", data=AGENT), Upload(name=name, data=b"x = 1\n"))


@pytest.mark.parametrize(
    "name", ["../../etc/passwd.py", "/root/x.py", "\x1b[2J.py", "a\0.py", "random.py", "\udce4.py"]
)
def test_the_name_of_a_single_file_is_never_a_path(name: str) -> None:
    code = one(AGENT, name).code
    assert list(code.files) == ["agent.py"]
    refused(Upload(name=name, data=b"def act(:"))


@pytest.mark.parametrize(
    "uploads",
    [
        [],
        [Upload(name="a.py", data=b"")],
        [Upload(name="a.py", data=b"\0\1\2")],
        [Upload(name="a.txt", data=AGENT)],
        [Upload(name="a.ipynb", data=b"{}")],
        [Upload(name="a.tar.gz", data=b"\x1f\x8b\x08")],
        [Upload(name="a.zip", data=b"PK\x03\x04 broken")],
        [Upload(name="a.zip", data=packed({}))],
        [Upload(name="a.zip", data=packed({"notes.txt": b"hi"}))],
        [Upload(name="a.py", data=AGENT), Upload(name="a.py", data=AGENT)],
        [Upload(name="a.py", data=AGENT), Upload(name="A.py", data=AGENT)],
        [Upload(name="a.py", data=AGENT), Upload(name="a.py/b.py", data=AGENT)],
        [Upload(name="a.py", data=AGENT), Upload(name="b.zip", data=packed({"b.py": AGENT}))],
        [Upload(name="__pycache__/a.py", data=AGENT), Upload(name=".git/config", data=b"")],
        [Upload(name=f"f{at}.py", data=b"x") for at in range(11)],
        [Upload(name="agent.py", data=b"#" * ((1 << 18) + 1))],
        [Upload(name=f"f{at}.py", data=b"#" * 200_000) for at in range(8)],
        [Upload(name="a.zip", data=packed({"../evil.py": AGENT}))],
        [Upload(name="a.zip", data=packed({"agent.py": b"#" * (1 << 19)}, zipfile.ZIP_DEFLATED))],
        [Upload(name="a.zip", data=packed({f"f{at}.py": b"" for at in range(11)}))],
    ],
)
def test_what_cannot_be_taken_is_refused_in_words(
    uploads: list[Upload], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(refused(*uploads)) > 10
    assert list(tmp_path.rglob("*")) == []


def test_a_zip_bomb_and_a_link_are_refused() -> None:
    bomb = packed({"agent.py": AGENT, "data.bin": bytes(9 << 20)}, zipfile.ZIP_DEFLATED)
    assert "zip bomb" in refused(Upload(name="a.zip", data=bomb), limits=ArchiveLimits())
    link = zipfile.ZipInfo("agent.py")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(link, "/etc/passwd")
    assert "symbolic link" in refused(Upload(name="a.zip", data=stream.getvalue()))


def test_a_source_made_to_break_the_parser_does_not_break_the_platform() -> None:
    deep = b"x = " + b"(" * 100_000 + b")" * 100_000 + b"\n"
    assert "mine.py line 1: too many nested parentheses" in refused(Upload(name="mine.py", data=deep))
    wide = b"x = " + b"-" * 200_000 + b"1\n"
    assert one(wide).kind is SubmissionKind.SELF_REPORTED


def test_a_name_is_shown_on_one_line() -> None:
    assert take_in([Upload(name="a.py", data=AGENT)], name="a\n\x1b[31mb").code.name == "a??[31mb"


# Where only scripts are run


def test_an_agent_can_be_run_as_a_script_by_the_name_that_scripts_have() -> None:
    alone = as_script(one(AGENT).code)
    assert (alone.main, alone.files) == ("submission.py", {"submission.py": AGENT})
    together = as_script(several(main_file="b.py", a=b"x = 1\n", b=AGENT).code)
    assert (together.main, together.files) == ("b.py", {"a.py": b"x = 1\n", "b.py": AGENT})
    script = one(SCRIPT).code
    assert as_script(script) is script


def test_a_command_is_no_script() -> None:
    code = AgentCode(name="a", files={"agent.js": b""}, entry="", command=("node", "agent.js"))
    with pytest.raises(IntakeError, match="only Python scripts"):
        as_script(code)
