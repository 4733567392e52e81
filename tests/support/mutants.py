"""Builds the native part from changed copies of its sources, each object once; changes copies of the folder guest."""

from __future__ import annotations

import compileall
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.layers import Edit

PROJECT = Path(__file__).parents[2]
NATIVE = PROJECT / "src/harena/backends/local/native"
GUEST = PROJECT / "src/harena/backends/local/guest"
BUILT = PROJECT / "build" / "mutants"
"""Kept between runs, by content; `make clean` removes it."""
FAST = ("-O0", "-std=gnu11", "-w", "-fPIC")


def sources(folder: Path = NATIVE) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.glob("*.[ch]"))}


def edited(texts: dict[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    """The texts with every edit made; one that fits nothing is an error: the code has changed, and the edit must too."""
    changed = dict(texts)
    for edit in edits:
        changed[edit.file], count = re.subn(edit.old, edit.new, changed[edit.file])
        assert count, f"{edit.file} has nothing like {edit.old}"
    return changed


def build(
    edits: Sequence[Edit] = (),
    *,
    flags: Sequence[str] = FAST,
    static: bool = True,
    more: Mapping[str, str] | None = None,
) -> Path:
    """A folder with `harena-box` and `zygote.so`, made from the sources with these edits, and more sources."""
    texts = edited(sources(), edits) | dict(more or {})
    folder = BUILT / _key(*texts.items(), flags, static)
    if folder.is_dir():
        return folder
    BUILT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILT) as name:
        made = Path(name, "made")
        made.mkdir()
        objects = {path: _object(path, texts, flags) for path in texts if path.endswith(".c")}
        box = [found for path, found in objects.items() if path != "zygote.c"]
        loop = [found for path, found in objects.items() if path != "box.c"]
        os.link(_linked(box, flags, *(["-static"] if static else [])), made / "harena-box")
        os.link(_linked(loop, flags, "-shared"), made / "zygote.so")
        _publish(made, folder)
    return folder


def _linked(objects: Sequence[Path], flags: Sequence[str], kind: str = "") -> Path:
    """The program or library of these objects: an edit of one source file often leaves one of the two as it was."""
    found = BUILT / f"{_key(objects, flags, kind)}.linked"
    if not found.exists():
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            _cc(*flags, *([kind] if kind else []), "-o", Path(folder, "linked"), *objects)
            os.replace(Path(folder, "linked"), found)
    return found


def _object(name: str, texts: dict[str, str], flags: Sequence[str]) -> Path:
    headers = {path: text for path, text in texts.items() if path.endswith(".h")}
    found = BUILT / f"{_key(*headers.items(), texts[name], flags)}.o"
    if not found.exists():
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            for path, text in (*headers.items(), (name, texts[name])):
                Path(folder, path).write_text(text)
            _cc(*flags, "-c", "-o", Path(folder, "object"), Path(folder, name))
            os.replace(Path(folder, "object"), found)
    return found


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:  # another worker was faster
        assert folder.is_dir()


def _cc(*arguments: str | Path) -> None:
    done = subprocess.run([os.environ.get("CC") or "cc", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _key(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def edited_guest(edits: Sequence[Edit]) -> Path:
    """A copy of the folder guest with every edit made, kept like what is built."""
    texts = {path.name: path.read_text() for path in sorted(GUEST.glob("*.py"))}
    for edit in edits:
        made = {name: re.subn(edit.old, edit.new, text) for name, text in texts.items()}
        assert any(count for _, count in made.values()), f"no module of {GUEST} has anything like {edit.old}"
        texts = {name: text for name, (text, _) in made.items()}
    folder = BUILT / _key(*texts.items())
    if not folder.is_dir():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as parent:
            made_in = Path(parent, "made")
            made_in.mkdir()
            for name, text in texts.items():
                (made_in / name).write_text(text)
            compileall.compile_dir(made_in, quiet=1)  # as `make native` does it: a box writes no .pyc
            _publish(made_in, folder)
    return folder
