"""Layers, mounted by overlayfs in the user namespace of their ids, show the files of the image."""

from __future__ import annotations

import ctypes
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

from harena.images.unpack.ids import Ids
from harena.images.unpack.unpack import TREE, unpack_layer
from support.unpack_tools import Layer, ids, store

__all__ = ["ids", "store"]

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER, NEW_MOUNTS = 0x10000000, 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000


def inside(ids: Ids, paths: list[Path], work: Callable[[list[str]], str]) -> str:
    """What `work` returns in a user and mount namespace with these ids, as their root, for these folders."""
    ready, mapped, answer = os.pipe(), os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            assert LIBC.unshare(NEW_USER | NEW_MOUNTS) == 0
            os.write(ready[1], b"1")
            os.read(mapped[0], 1)
            # Overlayfs takes folders of its own mount namespace only, and the root of the ids may not enter them.
            opened = [os.open(path, os.O_PATH | os.O_DIRECTORY) for path in paths]
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
            os.write(answer[1], work([f"/proc/self/fd/{number}" for number in opened]).encode())
        except BaseException as error:
            os.write(answer[1], repr(error).encode())
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.read(ready[0], 1)
    ids.write(child)
    os.write(mapped[1], b"1")
    os.waitpid(child, 0)
    os.close(answer[1])
    with os.fdopen(answer[0]) as file:
        found = file.read()
    for end in (*ready, *mapped):
        os.close(end)
    return found


def test_upper_layers_hide_what_they_say(store: Path, ids: Ids) -> None:
    lower = (
        Layer().add("keep", b"1").add("gone", b"2").add("opaque/old", b"3").add("dir/old", b"4").add("both/old", b"5")
    )
    lower.add("home/me", b"6", uid=1000, gid=1000, mode=0o600)
    upper = (
        Layer().add(".wh.gone").add("opaque/.wh..wh..opq").add("opaque/new", b"7").add("dir/.wh.old").add("both/new")
    )
    layers: list[Path] = []
    for number, layer in enumerate((lower, upper)):
        unpack_layer(io.BytesIO(layer.bytes()), store / str(number), ids=ids)
        layers.append(store / str(number) / TREE)

    def look(folders: list[str]) -> str:
        options = f"lowerdir={':'.join(folders)},userxattr".encode()
        LIBC.mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
        if LIBC.mount(b"overlay", b"/tmp", b"overlay", 0, options):
            return f"mount: {os.strerror(ctypes.get_errno())}"
        os.chdir("/tmp")
        files = sorted(os.path.join(folder, name)[2:] for folder, _, names in os.walk(".") for name in names)
        owner = os.stat("home/me")
        return f"{' '.join(files)} {owner.st_uid}:{owner.st_gid}"

    expected = "1000:1000" if ids.kind == "full" else "0:0"
    found = inside(ids, layers[::-1], look)
    assert found == f"both/new both/old home/me keep opaque/new {expected}"
