"""A journal shows every change to it, by anybody, and names the first entry that was changed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harena.errors import JournalBroken, JournalError, SpecError, WrongProcess
from harena.journal import Journal, JournalFolder, steps, verify
from harena.journal import entries as format_of
from harena.journal.reader import read

KEY = b"k" * 32
BIG = b"large \xff " * 1000
RESULT: dict[str, Any] = {
    "verdict": "ok",
    "exit_code": 0,
    "signal": None,
    "detail": "",
    "started": True,
    "isolation": "full",
    "ids": "",
    "usage": {"cpu_s": 0.1, "wall_s": 0.2, "peak_mb": 1.5, "bytes": 4},
    "stdout": b"out\n",
    "stderr": b"",
    "value": None,
    "network": None,
}


def run(journal: Journal, source: bytes = b"print(1)", stdout: bytes = b"out\n") -> int:
    of = journal.act("run", {}, {"source": source}, {"limits": {}})
    journal.end(of, [{**RESULT, "stdout": stdout}])
    return of


def write(path: Path, *, key: bytes | None = None, runs: int = 3) -> Path:
    with Journal(path, key=key, labels={"run": "first"}) as journal:
        journal.open("box", {}, {})
        for number in range(runs):
            run(journal, b"print(%d)" % number, BIG)
        journal.reward(1.0, done=True)
    return path


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def rechained(lines: list[bytes]) -> bytes:
    """What somebody who knows the format writes: every digest right again."""
    prev, made = format_of.FIRST, b""
    for seq, line in enumerate(lines):
        entry = json.loads(line) | {"seq": seq, "prev": prev}
        text = json.dumps(entry, separators=(",", ":")).encode()
        prev = hashlib.sha256(text).hexdigest()
        made += text + b"\n"
    return made


def test_journal_is_intact_as_written(tmp_path: Path) -> None:
    found = verify(write(tmp_path / "a.jsonl", key=KEY), key=KEY)
    assert (found.ok, found.closed, found.keyed, found.signatures_checked, found.entries) == (True, True, True, True, 9)
    assert found.head == hashlib.sha256(lines_of(tmp_path / "a.jsonl")[-1].rstrip(b"\n")).hexdigest()


@pytest.mark.parametrize("at", [0, 1, 4, 8])
def test_changed_entry_is_named(tmp_path: Path, at: int) -> None:
    """The last one is found by the digest that somebody kept, the others by the chain."""
    path = write(tmp_path / "a.jsonl")
    head = verify(path).head
    lines = lines_of(path)
    lines[at] = lines[at].replace(b'"at":"20', b'"at":"19')
    path.write_bytes(b"".join(lines))
    found = verify(path, head=head)
    assert not found.ok
    assert found.entries == (at + 1 if at < 8 else 9)


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_removed_repeated_and_swapped_entries_are_named(tmp_path: Path, key: bytes | None) -> None:
    lines = lines_of(write(tmp_path / "a.jsonl", key=key))
    for changed, at in (
        (lines[:3] + lines[4:], 3),
        ([*lines[:3], lines[2], *lines[3:]], 3),
        ([*lines[:3], lines[4], lines[3], *lines[5:]], 3),
        (lines[1:], 0),
        ([*lines, lines[-1]], 9),
    ):
        (tmp_path / "b.jsonl").write_bytes(b"".join(changed))
        found = verify(tmp_path / "b.jsonl", key=key)
        assert (found.ok, found.entries) == (False, at)
        assert found.problem


def test_chain_that_was_computed_again_is_found_only_with_the_key(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", key=KEY)
    lines = lines_of(path)
    lines[3] = lines[3].replace(b"print(1)", b"print(7)")
    path.write_bytes(rechained(lines))
    assert verify(path).ok
    found = verify(path, key=KEY)
    assert (found.ok, found.entries) == (False, 3)
    assert "signature" in found.problem


def test_journal_that_claims_to_be_unsigned_is_refused_with_a_key(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", key=KEY)
    lines = [json.dumps({k: v for k, v in json.loads(line).items() if k != "mac"}).encode() for line in lines_of(path)]
    lines[0] = lines[0].replace(b'"keyed": true', b'"keyed": false')
    path.write_bytes(rechained(lines))
    assert verify(path).ok
    found = verify(path, key=KEY)
    assert (found.ok, found.entries) == (False, 0)
    assert "not signed" in found.problem


def test_signatures_cannot_be_left_out_in_the_middle(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", key=KEY)
    entry = json.loads(lines_of(path)[4])
    del entry["mac"]
    changed = lines_of(path)
    changed[4] = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
    path.write_bytes(b"".join(changed))
    assert verify(path).problem == "not signed"


def test_another_key_is_wrong(tmp_path: Path) -> None:
    found = verify(write(tmp_path / "a.jsonl", key=KEY), key=b"x" * 32)
    assert (found.ok, found.entries) == (False, 0)


def test_end_that_was_cut_off_is_known_by_the_head(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", key=KEY)
    head = verify(path, key=KEY).head
    path.write_bytes(b"".join(lines_of(path)[:5]))
    assert (verify(path, key=KEY).ok, verify(path, key=KEY).closed) == (True, False)
    assert "cut off" in verify(path, key=KEY, head=head).problem


def test_torn_last_line_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    whole = path.read_bytes()
    last = len(lines_of(path)[-1])
    for cut in (1, 2, last // 2, last - 1):
        path.write_bytes(whole[:-cut])
        found = verify(path)
        assert (found.ok, found.problem, found.entries, found.torn) == (False, "", 8, last - cut)
        assert len(list(read(path))) == 8


def test_changed_and_missing_contents_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    digest = hashlib.sha256(BIG).hexdigest()
    blob = tmp_path / "blobs" / digest[:2] / digest
    assert blob.read_bytes() == BIG
    blob.write_bytes(BIG[:-1] + b"!")
    assert (verify(path).entries, verify(path).problem) == (2, f"the contents {digest} were changed")
    blob.unlink()
    assert "cannot be read" in verify(path).problem
    blob.symlink_to("/etc/passwd")
    assert "cannot be read" in verify(path).problem
    os.unlink(blob)
    os.mkfifo(blob)
    assert not verify(path).ok


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"seq":0}',
        b'{"seq":NaN}',
        b'{"seq":0,"at":"","kind":"open","prev":"' + b"0" * 64 + b'"}',
        b'{"seq":0,"at":"","kind":["open"],"prev":"' + b"0" * 64 + b'"}',
        b'{"seq":0,"seq":0}',
        b"x" * (format_of.MAX_LINE + 10),
    ],
    ids=lambda line: line[:20],
)
def test_nonsense_is_named_and_never_believed(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line + b"\n")
    found = verify(path)
    assert (found.ok, found.entries) == (False, 0)
    assert found.problem
    with pytest.raises(JournalBroken):
        list(read(path))


def test_references_lead_nowhere_else(tmp_path: Path) -> None:
    """A reference that is a path is refused by the schema."""
    path = write(tmp_path / "a.jsonl")
    digest = hashlib.sha256(BIG).hexdigest().encode()
    path.write_bytes(rechained(lines_of(path)).replace(digest, b"../../../../etc/passwd".ljust(64, b"/")))
    assert "type" in verify(path).problem


def test_unknown_fields_and_wrong_types_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    entry = json.loads(lines_of(path)[1])
    for change in (
        {"extra": 1},
        {"labels": {"admin": "yes"}},
        {"labels": {"run": "x" * 300}},
        {"verb": "delete"},
        {"action": {}},
        {"seq": True},
    ):
        with pytest.raises(JournalBroken):
            format_of.decode(json.dumps(entry | change, separators=(",", ":")).encode())


def test_journal_never_replaces_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    with pytest.raises(SpecError, match="exists"):
        Journal(path)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(SpecError):
        Journal(tmp_path / "link.jsonl")
    assert path.stat().st_mode & 0o777 == 0o600


def test_full_journal_refuses_before_anything_runs(tmp_path: Path) -> None:
    with Journal(tmp_path / "a.jsonl", max_bytes=10_000) as journal:
        journal.open("box", {}, {})
        with pytest.raises(JournalError, match="nothing was run"):
            for _ in range(100):
                run(journal, os.urandom(5000))
        assert journal.head[0] < 10
    assert verify(tmp_path / "a.jsonl").ok


def test_journals_of_a_folder_share_their_room(tmp_path: Path) -> None:
    folder = JournalFolder(tmp_path / "owner", max_bytes=20_000)
    first = folder.create("first", owner="me")
    first.open("box", {}, {})
    run(first, os.urandom(30_000))
    for made in (folder, JournalFolder(tmp_path / "owner", max_bytes=20_000)):  # also after a restart
        other = made.create(f"other{id(made)}")
        other.open("box", {}, {})
        with pytest.raises(JournalError):
            run(other)
        other.close()
    first.close()
    with pytest.raises(SpecError):
        folder.path("../escape")


def test_disk_that_is_full_leaves_an_intact_journal_without_what_did_not_run(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the disk: the write is cut in the middle of a line."""
    source = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from harena.errors import JournalError
from harena.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2500, resource.RLIM_INFINITY))
journal = Journal({str(tmp_path / "a.jsonl")!r})
journal.open("box", {{}}, {{}})
begin = lambda: journal.act("run", {{}}, {{"source": b"print(1)"}}, {{"limits": {{}}}})
end = lambda: journal.fail(1, "platform", "BoxLost", "it is lost", "unknown")
for action in [begin] * 20 + [end, begin]:
    try:
        action()
    except JournalError as error:
        print(journal.head[0], error.retry.value)
"""
    shown = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout.split()
    assert shown[1::2] == ["safe"] * (len(shown) // 2 - 2) + ["unknown", "never"]
    assert "safe" in shown
    found = verify(tmp_path / "a.jsonl")
    assert (found.ok, found.closed) == (True, False)
    assert {found.entries} == set(map(int, shown[::2]))


def test_process_killed_while_it_writes_loses_at_most_the_last_line(tmp_path: Path) -> None:
    source = f"""
import sys
from harena.journal import Journal
journal = Journal({str(tmp_path / "a.jsonl")!r})
journal.open("box", {{}}, {{}})
print("ready", flush=True)
while True:
    journal.act("run", {{}}, {{"source": b"x" * 100}}, {{"limits": {{}}}})
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        while (tmp_path / "a.jsonl").stat().st_size < 100_000:
            pass
        process.send_signal(signal.SIGKILL)
    found = verify(tmp_path / "a.jsonl")
    assert (found.problem, found.closed) == ("", False)
    assert found.entries > 100
    last = list(steps(tmp_path / "a.jsonl"))[-1]
    assert (last["fault"]["kind"], last["mask"]) == ("Unfinished", True)


def test_forked_child_writes_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl")
    journal.open("box", {}, {})
    child = os.fork()
    if child == 0:
        try:
            run(journal)
        except WrongProcess:
            journal.close()
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    run(journal)
    journal.close()
    assert verify(tmp_path / "a.jsonl").entries == 4


def test_threads_write_one_chain(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Journal(tmp_path / "a.jsonl") as journal:
        journal.open("box", {}, {})
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: run(journal, b"%d" % number, BIG), range(200)))
    assert (verify(tmp_path / "a.jsonl").ok, verify(tmp_path / "a.jsonl").entries) == (True, 402)


def test_reward_must_be_a_number_for_an_action_of_the_journal(tmp_path: Path) -> None:
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.open("box", {}, {})
        with pytest.raises(SpecError):
            journal.reward(1.0)
        of = run(journal)
        for wrong in (float("nan"), float("inf"), "1", True):
            with pytest.raises(SpecError):
                journal.reward(wrong)
        with pytest.raises(SpecError):
            journal.reward(1.0, of=99)
        journal.reward(0.25, of=of)
        journal.reward(0.75, of=of, done=True)
    [step] = steps(tmp_path / "a.jsonl")
    assert (step["reward"], step["done"]) == (0.75, True)


def test_platform_fault_is_masked_whatever_reward_was_given(tmp_path: Path) -> None:
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.open("box", {}, {})
        for party in ("platform", "caller"):
            of = journal.act("run", {}, {"source": b""}, {"limits": {}})
            journal.fail(of, party, "BoxLost", "gone", "unknown")
            journal.reward(0.0, of=of)
    masked, mistake = steps(tmp_path / "a.jsonl")
    assert (masked["reward"], masked["mask"], masked["fault"]["party"]) == (None, True, "platform")
    assert (mistake["reward"], mistake["mask"], mistake["fault"]["party"]) == (0.0, False, "caller")


def test_bytes_come_back_uncut(tmp_path: Path) -> None:
    import base64

    outputs = [b"", b"text \x1b[2J", BIG, bytes(range(256)), "é€😀".encode() * 3000, b"\xff"]
    with Journal(tmp_path / "a.jsonl") as journal:
        journal.open("box", {}, {})
        for output in outputs:
            run(journal, stdout=output)
    for step, output in zip(steps(tmp_path / "a.jsonl"), outputs, strict=True):
        seen = step["observation"]
        assert seen["stdout"] == output.decode("utf-8", "replace")
        assert base64.b64decode(seen.get("stdout_base64", "")) == (b"" if _is_text(output) else output)
    assert (tmp_path / "a.jsonl").read_bytes().isascii()
    assert b"\x1b" not in (tmp_path / "a.jsonl").read_bytes()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(20):
        Journal(tmp_path / f"{number}.jsonl").open("box", {}, {})
    assert len(os.listdir("/proc/self/fd")) <= before + 1
