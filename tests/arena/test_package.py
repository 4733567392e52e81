"""Code comes back as it was kept, and bytes that are no package are refused."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from harena.arena.submissions.intake import PackageError, pack, unpack, zip_of
from harena.arena.submissions.script import ScriptCode
from harena.match.result import AgentCode

FILES = {"agent.py": b"def act(o): return 0\n", "net/w.bin": bytes(range(256)), "manifest.json": b"{}", "zoë.txt": b""}
CODES = [
    AgentCode(name="agent", files=FILES, entry="agent.py"),
    AgentCode(name="agent", files=FILES, entry="", command=("node", "agent.js", "ü")),
    ScriptCode(name="agent", files=FILES, main="net/w.bin"),
]


@pytest.mark.parametrize("code", CODES)
def test_code_comes_back_as_it_was(code):
    assert unpack(pack(code)) == code
    assert unpack(pack(code), name="other").name == "other"


def test_the_same_code_gives_the_same_bytes_in_whatever_order(monkeypatch):
    one = pack(CODES[0])
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    shuffled = AgentCode(name="b", files=dict(reversed(FILES.items())), entry="agent.py")
    assert pack(shuffled) == one
    assert len({pack(code) for code in CODES}) == len(CODES)


def bare(files):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return stream.getvalue()


def manifest(**fields):
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK",
        pack(CODES[0])[:-30],
        zip_of(FILES),
        bare({"files/a.py": b""}),
        bare({"manifest.json": b"{", "files/a.py": b""}),
        bare({"manifest.json": manifest(type="agent", entry="a.py", more=1), "files/a.py": b""}),
        bare({"manifest.json": manifest(type="pickle", entry="a.py"), "files/a.py": b""}),
        bare({"manifest.json": manifest(type="agent", entry="b.py"), "files/a.py": b""}),
        bare({"manifest.json": manifest(type="script", main="../a.py"), "files/a.py": b""}),
        bare({"manifest.json": manifest(type="agent", entry="a.py"), "files/../../a.py": b""}),
        bare({"manifest.json": manifest(type="agent", entry="a.py"), "files/a.py": b"", "b.py": b""}),
    ],
)
def test_bytes_that_are_no_package_are_refused(data):
    with pytest.raises(PackageError):
        unpack(data)
