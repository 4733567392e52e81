from __future__ import annotations

import io
import os
import random
import socket
import stat
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from harena.match.agent import load as agents
from harena.match.agent.load import AgentError, ArchiveLimits

AGENT = b"class Agent:\n    def act(self, observation):\n        return 1\n"


def zipped(files: dict[str | zipfile.ZipInfo, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data, compression)
    return stream.getvalue()


def refused(data: bytes | Path, *words: str, limits: ArchiveLimits = agents.DEFAULT_LIMITS) -> None:
    with pytest.raises(AgentError) as caught:
        agents.load(data, limits=limits)
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).isprintable()


# What is read


def test_a_file_is_an_agent_named_after_it(tmp_path: Path) -> None:
    path = tmp_path / "random.py"
    path.write_bytes(AGENT)
    code = agents.load(path)
    assert (code.name, code.entry, code.files) == ("random", "agent.py", {"agent.py": AGENT})
    assert agents.load(str(path), name="mine").name == "mine"


def test_bytes_are_a_zip_or_one_file() -> None:
    assert agents.load(AGENT).files == {"agent.py": AGENT}
    assert agents.load(zipped({"agent.py": AGENT})).files == {"agent.py": AGENT}


def test_a_folder_keeps_modules_and_weights_and_leaves_out_clutter(tmp_path: Path) -> None:
    for name in (
        "agent.py",
        "helper.py",
        "net/weights.npz",
        "__pycache__/x.pyc",
        ".git/config",
        ".DS_Store",
        "._agent.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(AGENT)
    assert sorted(agents.load(tmp_path).files) == ["agent.py", "helper.py", "net/weights.npz"]


def test_a_single_top_folder_of_a_zip_is_taken_off() -> None:
    files = {"bot/agent.py": AGENT, "bot/data/w.bin": b"1", "__MACOSX/bot/._agent.py": b"x", "bot/": b""}
    assert sorted(agents.load(zipped(files)).files) == ["agent.py", "data/w.bin"]
    assert sorted(agents.load(zipped({"a/agent.py": AGENT, "main.py": AGENT})).files) == ["a/agent.py", "main.py"]


@pytest.mark.parametrize(
    ("names", "entry"),
    [
        (("agent.py", "main.py"), "agent.py"),
        (("main.py", "helper.py"), "main.py"),
        (("bot.py", "weights.bin"), "bot.py"),
        (("bot.py", "__init__.py", "tools/a.py"), "bot.py"),
        (("src/bot.py", "weights.bin"), "src/bot.py"),
    ],
)
def test_the_entry_is_agent_main_or_the_only_python_file(names: tuple[str, ...], entry: str) -> None:
    assert agents.load(zipped(dict.fromkeys(names, AGENT))).entry == entry


def test_without_a_clear_entry_the_author_is_asked() -> None:
    refused(zipped({"a.py": AGENT, "b.py": AGENT}), "agent.py", "a.py, b.py")
    refused(zipped({"a.js": b"1"}), "agent.json", "docs/agents.md")


def test_a_manifest_names_a_command_or_an_entry() -> None:
    code = agents.load(
        zipped({"agent.json": b'{"command": ["node", "agent.js"]}', "agent.js": b"1", "agent.py": AGENT})
    )
    assert (code.entry, code.command) == ("", ("node", "agent.js"))
    code = agents.load(zipped({"agent.json": b'{"entry": "b.py"}', "a.py": AGENT, "b.py": AGENT}))
    assert (code.entry, code.command) == ("b.py", ())


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{}",
        b'{"command": []}',
        b'{"command": [""]}',
        b'{"command": "node x"}',
        b'{"command": [1]}',
        b'{"command": ["a\\u0000"]}',
        b'{"command": ["a", null]}',
        b'{"entry": "../b.py"}',
        b'{"entry": "missing.py"}',
        b'{"entry": 1}',
        b'{"entry": "agent.json"}',
        b'{"entry": "agent.py", "command": ["x"]}',
        b'{"entry": "agent.py", "more": 1}',
        b'{"command": ["\\u001b[2J"]}',
        b'{"entry": "agent.py", "entry": "agent.py"}',
        b"[" * 60000,
        b'{"command": ["' + b"x" * 70000 + b'"]}',
        b"\xff\xfe{}",
        b'{"command": ["\\ud800"]}',
    ],
)
def test_any_other_manifest_is_refused(manifest: bytes) -> None:
    refused(zipped({"agent.py": AGENT, "agent.json": manifest}), "agent.json")


def test_a_zip_within_a_zip_stays_a_file() -> None:
    inner = zipped({"../../x": b"1"})
    assert agents.load(zipped({"agent.py": AGENT, "weights.npz": inner})).files["weights.npz"] == inner


def test_zip64_is_read() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive, archive.open("agent.py", "w", force_zip64=True) as file:
        file.write(AGENT)
    assert agents.load(stream.getvalue()).files == {"agent.py": AGENT}


def test_other_things_are_refused_with_the_way_out(tmp_path: Path) -> None:
    refused(tmp_path / "missing.py", "cannot be read")
    refused(b"", "empty")
    refused(b"\x1f\x8b\x08\0", "gzip", "make a zip")
    refused(b"\x7fELF\0", "neither Python source nor a zip")
    for name, word in (("a.ipynb", "notebook"), ("a.txt", "neither Python source nor a zip"), ("a.zip", "neither")):
        (tmp_path / name).write_bytes(b"{}")
        refused(tmp_path / name, name, word)
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "no files")
    os.mkfifo(tmp_path / "fifo.py")
    refused(tmp_path / "fifo.py", "neither a file nor a folder")


# Hostile archives


@pytest.mark.parametrize(
    "name",
    [
        "../x.py",
        "a/../../x.py",
        "/etc/passwd",
        "C:/x.py",
        "c:x.py",
        "a\\b.py",
        "..\\x.py",
        "a\0.py",
        "a\n.py",
        "\x1b[2Jx.py",
        ".git/../../x.py",
    ],
)
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    placeholder = "n" * len(name)
    data = zipped({"agent.py": AGENT, placeholder: b"x"})
    refused(data.replace(placeholder.encode(), name.encode()))


def test_a_path_too_long_or_too_deep_is_refused() -> None:
    refused(zipped({"agent.py": AGENT, "a/" * 20 + "x.py": b"x"}), "folders")
    refused(zipped({"agent.py": AGENT, "a" * 300: b"x"}), "path")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_a_zip_holds_plain_files_only(kind: int) -> None:
    info = zipfile.ZipInfo("data.bin")
    info.external_attr = (kind | 0o777) << 16
    refused(zipped({"agent.py": AGENT, info: b"/etc/passwd"}), "data.bin")


def test_a_folder_holds_plain_files_only(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_bytes(AGENT)
    (tmp_path / "link").symlink_to("/etc/passwd")
    refused(tmp_path, "link", "symbolic link")
    (tmp_path / "link").unlink()
    (tmp_path / "folder").symlink_to("/etc")
    refused(tmp_path, "folder", "symbolic link")
    (tmp_path / "folder").unlink()
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path, "pipe", "named pipe")
    (tmp_path / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        refused(tmp_path, "socket")
    (tmp_path / "socket").unlink()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_bytes(b"1")
    refused(tmp_path, "UTF-8")


def test_a_bomb_is_refused_while_it_inflates() -> None:
    bomb = zipped({"agent.py": AGENT, "zeros.bin": bytes(9 << 20)})
    assert len(bomb) < 20_000
    refused(bomb, "zeros.bin", "200 to 1", "zip -0")
    refused(zipped({"agent.py": AGENT, "big.bin": bytes(11 << 20)}, zipfile.ZIP_STORED), "big.bin", "10 MB")


def test_the_size_in_the_header_is_not_believed() -> None:
    content = random.Random(1).randbytes(3 << 20)
    data = zipped({"agent.py": AGENT, "w.bin": content})
    lied = data.replace(struct.pack("<I", len(content)), struct.pack("<I", 1))
    assert lied != data
    refused(lied, "damaged")
    small = ArchiveLimits(file_bytes=1 << 20)
    lied = data.replace(struct.pack("<I", len(content)), struct.pack("<I", 0xFFFFFFF0))
    refused(lied, "w.bin", "1 MB", limits=small)


def test_all_files_together_are_capped_as_they_unpack() -> None:
    part = random.Random(3).randbytes(1 << 19).hex().encode()
    data = zipped({"agent.py": AGENT} | {f"{n}.txt": part for n in range(6)})
    assert len(data) < 4 << 20
    refused(data, "4.txt", "5 MB with this one", limits=ArchiveLimits(total_bytes=5 << 20))
    refused(data, "more than 2 MB", limits=ArchiveLimits(total_bytes=2 << 20))


def test_the_number_of_files_is_capped(tmp_path: Path) -> None:
    files = {"agent.py": AGENT} | {f"{n}.txt": b"" for n in range(2100)}
    refused(zipped(files), "2000 files")
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    refused(tmp_path, "2000 files")


def test_a_list_of_a_million_files_is_refused_unread() -> None:
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    directory = entry * 200_000
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFE, 0xFFFE, len(directory), 4, 0)
    data = b"PK\x03\x04" + directory + tail
    tracemalloc.start()
    try:
        refused(data, "list of files")
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()


def test_encrypted_and_unusual_archives_are_refused() -> None:
    data = bytearray(zipped({"agent.py": AGENT}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    refused(bytes(data), "agent.py", "password")
    refused(zipped({"agent.py": AGENT}, zipfile.ZIP_LZMA), "unusual compression")
    refused(zipped({"agent.py": AGENT}, zipfile.ZIP_BZIP2), "unusual compression")


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (("agent.py", "a.py", "A.py"), "differ only in case"),
        (("agent.py", "./agent.py"), "twice"),
        (("agent.py", "a", "a/b.py"), "a is a file"),
        (("agent.py", "caf\u00e9.py", "cafe\u0301.py"), "differ only in case"),
    ],
)
def test_no_two_files_share_a_name(names: tuple[str, ...], word: str) -> None:
    refused(zipped(dict.fromkeys(names, AGENT)), word)


def test_the_same_name_twice_is_refused() -> None:
    refused(zipped({"agent.py": AGENT, "agent.pz": AGENT}).replace(b"agent.pz", b"agent.py"), "twice")


def test_names_that_are_not_utf8_are_refused() -> None:
    data = zipped({"agent.py": AGENT, "nnnnn": b"1"})
    refused(data.replace(b"nnnnn", b"\xff\xfe\xfdnn"), "UTF-8")
    assert "é.py" in agents.load(data.replace(b"nnnnn", "é.py".encode())).files


def test_damaged_zips_are_only_ever_an_agent_error() -> None:
    whole = zipped({"agent.py": AGENT * 20, "b/weights.bin": random.Random(4).randbytes(300)})
    rng = random.Random(5)
    for cut in range(2, len(whole), 7):
        refused(whole[:cut])
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(2, len(data))] = rng.choice((0, 1, 0x7F, 0xFF, rng.randrange(256)))
        try:
            agents.load(bytes(data))
        except AgentError as error:
            assert str(error).isprintable()  # noqa: PT017 - most of them load


# What the source shows


@pytest.mark.parametrize(
    ("text", "kind", "name", "method"),
    [
        ("class Agent:\n def act(self, o): return 1", "class", "Agent", "act"),
        (
            "class Agent:\n def predict(self, o): return 1\n def get_action(self, o): return 1",
            "class",
            "Agent",
            "get_action",
        ),
        ("from helper import Base\nclass Agent(Base): pass", "class", "Agent", ""),
        ("class Agent:\n def __init__(self): self.act = lambda o: 1", "class", "Agent", ""),
        ("class Agent:\n def __call__(self, o): return 1", "class", "Agent", ""),
        ("class Agent:\n act = None", "class", "Agent", "act"),
        ("from helper import Agent", "class", "Agent", ""),
        ("try:\n from helper import Bot as Agent\nexcept ImportError:\n Agent = None", "class", "Agent", ""),
        ("def create_agent(player_id): return 1", "factory", "create_agent", ""),
        ("act = lambda o: 1", "function", "act", ""),
        ("if True:\n def agent(o, config): return 1", "function", "agent", ""),
        ("from helper import *", "", "", ""),
    ],
)
def test_the_entry_point_is_found_without_running_it(text: str, kind: str, name: str, method: str) -> None:
    entry = agents.find_entry(agents.load(text.encode()))
    assert (entry.kind, entry.name, entry.method) == (kind, name, method)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("class Agent:\n  def act(self, o)\n    return 1", ("agent.py line 2", "expected ':'", "def act(self, o)")),
        ("x = 1", ("no agent in it", "class Agent")),
        ("class agent_x: pass\ndef Act(o): return 1", ("no agent in it", "found Act")),
        ("class Agent:\n def step(self, o): return 1", ("line 1", "no method act")),
        ("class Agent:\n  def act(self, o):\n\treturn 1", ("line 3", "ab")),
        ("# coding: nonsense\nact = 1", ("agent.py", "nonsense")),
        ("x = '\x1b[2J", ("agent.py line 1",)),
    ],
)
def test_what_cannot_work_is_named_with_its_line(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(AgentError) as caught:
        agents.find_entry(agents.load(text.encode()))
    for word in words:
        assert word in str(caught.value)
    assert str(caught.value).isprintable()


def test_lint_warns_and_is_no_wall() -> None:
    text = b"""
import os, socket, torch, numpy.linalg, helper
from urllib.request import urlopen
from . import helper
try:
    import jax
except ImportError:
    jax = None
class Agent:
    def act(self, observation):
        print(observation)
        os.system("ls")
        return input()
"""
    code = agents.load(
        zipped(
            {
                "agent.py": text,
                "helper.py": b"import subprocess, bad",
                "random.py": b"",
                "bad.py": b"(",
                "train.py": b"import tensorflow",
                "w.bin": random.Random(6).randbytes(6 << 20),
                "requirements.txt": b"torch",
            }
        )
    )
    warnings = agents.lint(code)
    for words in (
        ("agent.py line 2", "socket", "no network"),
        ("agent.py line 2", "torch", "standard library and numpy"),
        ("agent.py line 3", "urllib.request", "no network"),
        ("agent.py line 4", "not in a package"),
        ("agent.py line 11", "prints on every move"),
        ("agent.py line 12", "os.system"),
        ("agent.py line 13", "input"),
        ("helper.py line 1", "subprocess"),
        ("random.py", "hides Python's own module"),
        ("bad.py", "syntax error"),
        ("w.bin", "6.0 MB"),
        ("requirements.txt", "its box will not have torch"),
    ):
        assert any(all(word in warning for word in words) for warning in warnings), words
    assert not any(
        word in warning
        for warning in warnings
        for word in ("jax", "tensorflow", "numpy.linalg", "imports helper", "imports os")
    )
    found = {advice.kind for advice in agents.inspect(code, refused=["os.system"]).advice}
    assert found == {*agents.AdviceKind} - {agents.AdviceKind.UNCHECKED}
    assert agents.find_entry(code).name == "Agent"
    assert not any("socket" in warning for warning in agents.lint(code, forbidden_imports=()))


def test_lint_is_short() -> None:
    assert len(agents.lint(agents.load(b"import socket\n" * 1000 + AGENT))) == 30


@pytest.mark.parametrize(
    "text", [b"(" * 100_000, b"x = " + b"-" * 200_000 + b"1", b"[" * 90 + b"]" * 90, b"a" + b".a" * 200_000]
)
def test_source_made_to_break_the_parser_breaks_nothing_here(text: bytes) -> None:
    report = agents.inspect(agents.load(AGENT + text))
    assert report.error or report.warnings or report.entry


def test_source_too_large_to_parse_is_left_to_the_box() -> None:
    report = agents.inspect(agents.load(AGENT + b"#" * (2 << 20)))
    assert not report.error
    assert "too large to check" in report.warnings[0]


def test_a_command_has_no_python_to_check() -> None:
    entry = agents.find_entry(agents.load(zipped({"agent.json": b'{"command": ["perl", "a.pl"]}', "a.pl": b""})))
    assert (entry.kind, entry.name) == ("command", "perl")
