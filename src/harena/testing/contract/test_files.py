"""Files: read, write, list, upload, download, digest, remove. Errors are OSError, as with files anywhere."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harena import BoxFileError, BoxFileNotFound, BoxFileTooLarge, HarenaError, Limits, Sandbox, SpecError

ODD_NAMES = ["with space", "ü€😀", "new\nline", "-rf", "a'b\"c", os.fsdecode(b"\xff\xfe.bin")]


@pytest.mark.parametrize("data", [b"", b"hi", bytes(range(256)) * 5000], ids=len)
def test_what_is_written_is_read(box: Sandbox, data: bytes) -> None:
    box.write("notes/deep/a.bin", data)
    assert box.read("notes/deep/a.bin") == data
    assert box.exec(["wc", "-c", "notes/deep/a.bin"]).stdout.split()[0] == str(len(data)).encode()


def test_text_is_written_as_utf8(box: Sandbox) -> None:
    box.write("a", "ü")
    assert box.read("a") == "ü".encode()


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names_work(box: Sandbox, tmp_path: Path, name: str) -> None:
    box.write(f"in/{name}", b"1")
    assert box.read(f"in/{name}") == b"1"
    assert [info.path for info in box.list("in")] == [name]
    assert box.sha256(f"in/{name}") == hashlib.sha256(b"1").hexdigest()
    box.download("in", tmp_path / "out")
    assert (tmp_path / "out" / name).read_bytes() == b"1"
    box.remove(f"in/{name}")
    assert box.list("in") == []


def test_absolute_paths_are_those_of_the_box(box: Sandbox) -> None:
    box.write("/tmp/a", b"1")
    assert box.exec(["cat", "/tmp/a"]).stdout == b"1"
    assert b"box:x:1000" in box.read("/etc/passwd")


def test_read_is_capped(box: Sandbox) -> None:
    box.write("a", b"x" * 1000)
    assert box.read("a", max_bytes=1000) == b"x" * 1000
    with pytest.raises(BoxFileTooLarge) as caught:
        box.read("a", max_bytes=999)
    assert caught.value.errno == errno.EFBIG


def test_read_of_an_endless_file_is_capped(box: Sandbox) -> None:
    for path in ("/dev/zero", "/proc/self/mem"):
        with pytest.raises(BoxFileError):
            box.read(path, max_bytes=1000)
    assert box.exec(["true"]).ok


def test_files_pass_up_to_the_size_of_the_workspace(make_box: Callable[..., Sandbox], tmp_path: Path) -> None:
    box = make_box(workspace_mb=64)
    data = os.urandom(1 << 20) * 55
    box.write("big", data)
    assert box.read("big", max_bytes=len(data)) == data
    with pytest.raises(BoxFileTooLarge):
        box.read("big", max_bytes=len(data) - 1)
    with pytest.raises(BoxFileError) as caught:
        box.write("more", data)
    assert caught.value.errno == errno.ENOSPC
    assert [info.path for info in box.list()] == ["big"], "nothing is left of what did not fit"
    box.download(".", tmp_path)
    assert (tmp_path / "big").read_bytes() == data
    box.remove("big")
    box.upload(tmp_path)
    assert box.sha256("big") == hashlib.sha256(data).hexdigest()
    assert [info.path for info in box.list()] == ["big"]


def test_caps_above_the_limit_of_a_call_are_refused(box: Sandbox) -> None:
    with pytest.raises(SpecError, match="max_bytes"):
        box.read("a", max_bytes=1 << 40)


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o755, 0o444])
def test_write_sets_the_mode(box: Sandbox, mode: int) -> None:
    box.write("a", b"1", mode=mode)
    assert stat.S_IMODE(box.list()[0].mode) == mode


def test_write_never_sets_a_setuid_bit(box: Sandbox) -> None:
    box.write("a", b"1", mode=0o6755)
    assert box.list()[0].mode == 0o755


def test_write_replaces_in_one_step(box: Sandbox) -> None:
    """A reader sees the old contents or the new, never a mixture or nothing."""
    first, second = b"a" * 500_000, b"b" * 500_000
    box.write("a", first)
    with ThreadPoolExecutor(1) as threads:
        writer = threads.submit(lambda: [box.write("a", (first, second)[turn % 2]) for turn in range(40)])
        seen = set[bytes]()
        while not writer.done():
            seen.add(box.exec(["sh", "-c", "head -c 500001 a | sha256sum"]).stdout[:64])
        writer.result()
    assert seen <= {hashlib.sha256(data).hexdigest().encode() for data in (first, second)}
    assert [info.path for info in box.list()] == ["a"], "nothing is left beside it"


def test_write_replaces_a_link_and_not_its_target(box: Sandbox) -> None:
    box.exec(["sh", "-c", "echo old > target; ln -s target link"])
    box.write("link", b"new")
    assert (box.read("target"), box.read("link")) == (b"old\n", b"new")


def test_missing_file_is_not_found(box: Sandbox) -> None:
    for action in (box.read, box.sha256, box.remove, box.list):
        with pytest.raises(BoxFileNotFound) as caught:
            action("missing/file")
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.errno == errno.ENOENT
        assert "missing/file" in str(caught.value)


def test_folder_is_no_file_and_a_file_no_folder(box: Sandbox) -> None:
    box.exec(["mkdir", "folder"])
    for action in (lambda: box.read("folder"), lambda: box.write("folder", b""), lambda: box.sha256("folder")):
        with pytest.raises(BoxFileError) as caught:
            action()
        assert isinstance(caught.value, IsADirectoryError)
    assert [info.kind for info in box.list()] == ["dir"]
    box.write("file", b"")
    for action in (lambda: box.read("file/x"), lambda: box.list("file")):
        with pytest.raises(BoxFileError) as caught:
            action()
        assert isinstance(caught.value, NotADirectoryError)


def test_file_without_rights_is_neither_read_nor_replaced(box: Sandbox) -> None:
    box.write("a", b"old", mode=0o444)
    box.write("b", b"old", mode=0o200)
    for action in (lambda: box.write("a", b"new"), lambda: box.read("b"), lambda: box.write("/etc/passwd", b"")):
        with pytest.raises(BoxFileError) as caught:
            action()
        assert isinstance(caught.value, PermissionError)
    assert box.read("a") == b"old"
    assert sorted(info.path for info in box.list()) == ["a", "b"]


def test_pipe_does_not_hang_the_reader(box: Sandbox) -> None:
    box.exec(["mkfifo", "pipe"])
    for action in (box.read, box.sha256):
        with pytest.raises(BoxFileError):
            action("pipe")


def test_endless_links_are_an_error(box: Sandbox) -> None:
    box.exec(["ln", "-s", "loop", "loop"])
    with pytest.raises(BoxFileError) as caught:
        box.read("loop")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("path", ["/usr/bin/planted", "/etc/passwd", "/proc/1/comm", "/planted"])
def test_write_has_no_more_rights_than_the_guest(box: Sandbox, path: str) -> None:
    with pytest.raises(BoxFileError):
        box.write(path, b"x")


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000])
def test_impossible_paths_are_refused(box: Sandbox, path: str) -> None:
    for action in (box.read, box.list, box.sha256, box.remove, lambda path: box.write(path, b"")):
        with pytest.raises(SpecError, match="path"):
            action(path)


def test_full_workspace_is_an_os_error_and_leaves_no_half_file(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(workspace_mb=2)
    box.write("a", b"old")
    with pytest.raises(BoxFileError) as caught:
        box.write("a", b"x" * (4 << 20))
    assert caught.value.errno == errno.ENOSPC
    assert box.read("a") == b"old"
    assert [info.path for info in box.list()] == ["a"]


def test_list_tells_kind_size_mode_and_target(box: Sandbox) -> None:
    box.exec(["sh", "-c", "mkdir d; echo abc > d/f; chmod 640 d/f; ln -s f d/l; mkfifo d/p; mkdir d/e"])
    found = {info.path: info for info in box.list("d")}
    assert {path: info.kind for path, info in found.items()} == {"f": "file", "l": "symlink", "p": "other", "e": "dir"}
    assert (found["f"].size, found["f"].mode, found["l"].target) == (4, 0o640, "f")


def test_list_goes_deep_when_asked_and_is_capped(box: Sandbox) -> None:
    box.exec(["sh", "-c", "mkdir -p a/b/c; touch a/1 a/b/2 a/b/c/3; ln -s / a/root"])
    assert [info.path for info in box.list()] == ["a"]
    deep = ["a", "a/1", "a/b", "a/b/2", "a/b/c", "a/b/c/3", "a/root"]
    assert sorted(info.path for info in box.list(recursive=True)) == deep, "links are not followed"
    with pytest.raises(BoxFileTooLarge):
        box.list(recursive=True, max_entries=6)


def test_digest_is_that_of_the_contents(box: Sandbox) -> None:
    data = os.urandom(300_000)
    box.write("a", data)
    assert box.sha256("a") == hashlib.sha256(data).hexdigest()


def test_remove_takes_files_folders_and_links_but_no_targets(box: Sandbox) -> None:
    box.exec(["sh", "-c", "mkdir -p keep/d full/d; touch keep/f full/d/f f; ln -s keep link"])
    for path in ("f", "full", "link"):
        box.remove(path)
    assert [info.path for info in box.list(recursive=True)] == ["keep", "keep/d", "keep/f"]


def test_remove_takes_folders_their_owner_made_read_only(box: Sandbox) -> None:
    box.exec(["sh", "-c", "mkdir -p a/b; touch a/b/f; chmod 500 a/b a"])
    box.remove("a")
    assert box.list() == []


# ---- folders ----


def make_tree(top: Path) -> None:
    (top / "sub" / "deep").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "a.txt").write_bytes(b"a")
    (top / "sub" / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
    (top / "sub" / "deep" / "big.bin").write_bytes(bytes(range(256)) * 4000)
    (top / "sub" / "link").symlink_to("../a.txt")
    (top / "sub" / "dangling").symlink_to("nowhere")
    (top / "a.txt").chmod(0o640)
    (top / "sub" / "run.sh").chmod(0o755)
    (top / "empty").chmod(0o700)
    (top / "sub").chmod(0o750)


def tree(top: Path) -> dict[str, tuple[str, int, bytes | str]]:
    found: dict[str, tuple[str, int, bytes | str]] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[name] = ("symlink", 0, os.readlink(path))
        elif path.is_dir():
            found[name] = ("dir", mode, b"")
        else:
            found[name] = ("file", mode, path.read_bytes())
    return found


def test_folder_goes_up_and_comes_down_the_same(box: Sandbox, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    make_tree(source)
    assert box.upload(source, "in") == len(tree(source)) == 8
    assert box.exec(["in/sub/run.sh"]).stdout == b"ran\n"
    assert box.exec(["cat", "in/sub/link"]).stdout == b"a"
    assert box.download("in", target) == 8
    assert tree(target) == tree(source)


def test_upload_adds_to_what_is_there(box: Sandbox, tmp_path: Path) -> None:
    make_tree(tmp_path)
    box.write("a.txt", b"old")
    box.write("other.txt", b"stays")
    box.upload(tmp_path)
    assert (box.read("a.txt"), box.read("other.txt")) == (b"a", b"stays")


def test_folder_larger_than_one_message_passes(make_box: Callable[..., Sandbox], tmp_path: Path) -> None:
    box = make_box(workspace_mb=128)
    source = tmp_path / "source"
    source.mkdir()
    for number in range(5):
        (source / f"{number}.bin").write_bytes(os.urandom(1 << 16) * 160)
    box.upload(source, "in")
    box.download("in", tmp_path / "target")
    assert tree(tmp_path / "target") == tree(source)


def test_upload_takes_only_folders_of_files_folders_and_links(box: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not a folder"):
        box.upload(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match="neither"):
        box.upload(tmp_path)


Swap = Callable[[str, Callable[[], bool], Callable[[], object]], None]


@pytest.fixture
def swap_before() -> Iterator[Swap]:
    """Does something once, at the last moment before this process opens, lists or changes the mode of a name: what a
    guest that is quick enough would do in a folder that it may write to."""
    plans: list[tuple[str, Callable[[], bool], Callable[[], object]]] = []

    def hook(event: str, args: tuple[object, ...]) -> None:
        if plans and event in {"open", "os.scandir", "os.listdir", "os.chmod"} and isinstance(args[0], str):
            name, ready, action = plans[0]
            if os.path.basename(args[0]) == name and ready():
                plans.clear()
                action()

    sys.addaudithook(hook)
    yield lambda *plan: plans.append(plan)
    plans.clear()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_upload_follows_no_link_that_a_guest_swapped_in(
    box: Sandbox, tmp_path: Path, swap_before: Swap, kind: str
) -> None:
    shared, secret = tmp_path / "shared", tmp_path / "secret"
    for folder in (shared / "sub", secret):
        folder.mkdir(parents=True)
        (folder / "a").write_bytes(b"precious" if folder is secret else b"harmless")
    name, link = (shared / "sub" / "a", secret / "a") if kind == "file" else (shared / "sub", secret)

    def swap() -> None:
        name.rename(tmp_path / "aside")
        name.symlink_to(link)

    swap_before(name.name, lambda: True, swap)
    with pytest.raises(SpecError, match="was changed"):
        box.upload(shared, "in")
    assert (tmp_path / "aside").exists(), "the swap took place"
    assert b"precious" not in box.exec(["sh", "-c", "cat $(find . -type f) /dev/null"]).stdout


def test_download_changes_no_mode_through_a_link_that_a_guest_swapped_in(
    box: Sandbox, tmp_path: Path, swap_before: Swap
) -> None:
    box.write("d/sub/a", b"1")
    box.exec(["chmod", "777", "d/sub"])
    out, private = tmp_path / "out", tmp_path / "private"
    private.mkdir(mode=0o700)

    def swap() -> None:
        (out / "sub").rename(tmp_path / "aside")
        (out / "sub").symlink_to(private)

    swap_before("sub", (out / "sub" / "a").exists, swap)
    with contextlib.suppress(OSError):
        box.download("d", out)
    assert (tmp_path / "aside").exists(), "the swap took place"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700


def test_download_is_capped(box: Sandbox, tmp_path: Path) -> None:
    box.write("d/a", b"x" * 1000)
    with pytest.raises(BoxFileTooLarge):
        box.download("d", tmp_path / "out", max_bytes=999)
    assert box.download("d", tmp_path / "out", max_bytes=1000) == 1


@pytest.mark.parametrize("target", ["/etc/passwd", "../../../etc/passwd", "..", "sub/../../x"])
def test_download_makes_no_link_that_leads_out(box: Sandbox, tmp_path: Path, target: str) -> None:
    box.write("d/a", b"1")
    box.exec(["ln", "-s", target, "d/link"])
    with pytest.raises(BoxFileError, match="leads out"):
        box.download("d", tmp_path / "out")
    assert not (tmp_path / "out").exists(), "it is refused before anything is written"


@pytest.mark.parametrize(
    "line",
    [
        "ln -s .. d/s/up; ln -s up/../.. d/s/out",
        "ln -s . d/a; ln -s a/.. d/out",
        "ln -s s/t d/l; ln -s l/../../.. d/out",
    ],
)
def test_download_makes_no_links_that_lead_out_together(box: Sandbox, tmp_path: Path, line: str) -> None:
    assert box.exec(["sh", "-ec", f"mkdir -p d/s/t; {line}"]).ok
    out = tmp_path / "deep" / "out"
    try:
        box.download("d", out)
    except BoxFileError:
        return
    for path in out.rglob("*"):
        assert os.path.realpath(path).startswith(os.path.realpath(out)), f"{path} -> {os.readlink(path)} leads out"


def test_download_does_not_write_through_links_of_the_target(box: Sandbox, tmp_path: Path) -> None:
    box.write("d/sub/a", b"1")
    box.write("d/file", b"2")
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    out.mkdir()
    elsewhere.mkdir()
    (elsewhere / "file").write_bytes(b"precious")
    (out / "file").symlink_to(elsewhere / "file")
    (out / "sub").symlink_to(elsewhere)
    with pytest.raises((FileExistsError, NotADirectoryError, HarenaError)):
        box.download("d", out)
    assert (elsewhere / "file").read_bytes() == b"precious"
    assert os.listdir(elsewhere) == ["file"]


def test_download_leaves_out_what_is_no_file(box: Sandbox, tmp_path: Path) -> None:
    box.exec(["sh", "-c", "mkdir d; mkfifo d/pipe; touch d/f; chmod 4755 d/f 2>/dev/null; true"])
    box.download("d", tmp_path / "out")
    assert os.listdir(tmp_path / "out") == ["f"]
    assert not (tmp_path / "out" / "f").stat().st_mode & 0o7000


def test_files_need_no_command_to_be_allowed(make_box: Callable[..., Sandbox]) -> None:
    """The file server has limits of its own: those of the guest may be as small as they like."""
    box = make_box(limits=Limits(memory_mb=16, processes=1, output_bytes=0, open_files=16, wall_s=0.001))
    box.write("a", b"x" * 100_000)
    assert box.read("a") == b"x" * 100_000


def test_threads_may_use_files_and_commands_at_once(box: Sandbox) -> None:
    def work(number: int) -> None:
        for turn in range(10):
            data = f"{number} {turn}".encode() * 1000
            box.write(f"{number}/{turn}", data)
            assert box.read(f"{number}/{turn}") == data
            if turn == 5:
                assert box.exec(["cat", f"{number}/{turn}"]).stdout == data
                assert box.run(f"print({number})").stdout == f"{number}\n".encode()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
