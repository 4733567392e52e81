"""Runs one action on a store in a child for every step that it takes on the file system, and kills the child there.

Usage: killing.py STORE_PARENT ACTION IMAGE [STEP...]. Prints one JSON line with the number of steps and what was found
wrong. The parent of the children has no threads, so that it may fork.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from harena.images import ImageStore
from harena.images.registry.transport import TransportPatience
from harena.images.settings import ImageSettings
from harena.images.unpack.unpack import unpack_layer  # imported before the fork: its own imports are no steps

WATCHED = (
    "open",
    "os.rename",
    "os.mkdir",
    "os.remove",
    "os.rmdir",
    "os.truncate",
    "fcntl.flock",
    "os.utime",
    "subprocess.Popen",
)
assert unpack_layer


def store_at(folder: Path) -> ImageStore:
    return ImageStore(folder, settings=ImageSettings(folder), patience=TransportPatience(backoff_s=0.01))


def act(folder: Path, action: str, image: str) -> None:
    store = store_at(folder)
    if action == "pull":
        store.pull(image)
    elif action == "remove":
        store.remove(image)
    else:
        store.gc(max_bytes=0)


def in_child(folder: Path, action: str, image: str, kill_at: int) -> tuple[bool, int]:
    """Return whether the child was killed, and the steps it took."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        steps = 0

        def hook(event: str, args: tuple[object, ...]) -> None:
            nonlocal steps
            if event in WATCHED:
                steps += 1
                if steps == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)

        code = 1
        try:
            sys.addaudithook(hook)
            act(folder, action, image)
            os.write(writer, str(steps).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    told = os.read(reader, 100)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return True, kill_at
    assert status == 0, f"the child failed at step {kill_at}"
    return False, int(told)


def wrong_with(folder: Path, image: str, action: str) -> str:
    store = store_at(folder)
    for found in store.images():
        with found.lease() as lease:
            if (Path(lease.layers[-1]) / "data").read_bytes() != b"data" * 5000:
                return "a listed image has wrong files"
    records = list((folder / "images").iterdir())
    if len(records) != len(store.images()):
        return "a record has no layers"
    store.pull(image)
    done = store.gc()
    if done.in_use:
        return "a dead process holds layers"
    for name in ("tmp", "partial"):
        if any((folder / name).iterdir()):
            return f"{name} is not empty after gc"
    with store.pull(image).lease() as lease:
        if (Path(lease.layers[-1]) / "data").read_bytes() != b"data" * 5000:
            return "wrong files after another pull"
    return ""


def main() -> None:
    parent, action, image = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    folder, at, count, found = parent / "store", 1, 0, []
    stride = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    while True:
        if action == "pull":
            folder = parent / f"store-{at}"
        else:
            store_at(folder).pull(image)
        was_killed, steps = in_child(folder, action, image, at)
        if not was_killed:
            break
        count += 1
        if wrong := wrong_with(folder, image, action):
            found.append([at, wrong])
        at += stride
    print(json.dumps({"killed": count, "steps": steps, "wrong": found}))


if __name__ == "__main__":
    main()
