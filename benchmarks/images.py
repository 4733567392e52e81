"""Measures boxes from images, with Docker and bubblewrap on the same image in the same run where they are there.

    python benchmarks/images.py --root debian.tar      a root file system, best of about 1 GB (debootstrap makes one)

Prints JSON: times in milliseconds (median and lower quartile of alternating turns), memory in MB a box: what 100 boxes
that have each run a command take of the machine's memory, without the page cache; disk as the store's share of what the
same images would take if each had all of its files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harena import Limits, Sandbox, Spec
from harena.images import ImageStore
from harena.images.build import build
from harena.images.settings import ImageSettings

NAME = "bench:1"
CHANGED_MB = 200
BOXES = 100


def measured(turns: int, **actions: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Times of each action in milliseconds: what it returns, or how long it took. They take turns, so that other load
    meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(turns):
        for name, action in actions.items():
            start = time.perf_counter()
            told = action()
            times[name].append(told if isinstance(told, float) else (time.perf_counter() - start) * 1000)
    return {name: summary(values) for name, values in times.items()}


def summary(values: list[float]) -> dict[str, float]:
    return {
        "p50_ms": round(statistics.median(values), 2),
        "p25_ms": round(sorted(values)[len(values) // 4], 2),
        "turns": len(values),
    }


def first_command(**spec: Any) -> float:
    """Milliseconds to the result of the first command in a new box."""
    start = time.perf_counter()
    with Sandbox(Spec(**spec)) as box:
        assert box.exec(["/bin/true"]).ok
        return (time.perf_counter() - start) * 1000


@contextlib.contextmanager
def docker_image(tar: Path) -> Iterator[str | None]:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        yield None
        return
    name = "harena-bench:1"
    subprocess.run(["docker", "import", str(tar), name], check=True, capture_output=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "rmi", "-f", name], capture_output=True)


def in_docker(name: str) -> None:
    subprocess.run(["docker", "run", "--rm", "--network=none", name, "/bin/true"], check=True, capture_output=True)


@contextlib.contextmanager
def unpacked(tar: Path) -> Iterator[str | None]:
    """A copy for bubblewrap, which cannot read the store."""
    if shutil.which("bwrap") is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="harena-bench-root-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        subprocess.run(["tar", "-xf", str(tar), "-C", folder], check=True, capture_output=True)
        yield folder


def in_bubblewrap(root: str) -> None:
    command = ["bwrap", "--unshare-all", "--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"]
    subprocess.run(command, check=True, capture_output=True)


def start_times(tar: Path, turns: int) -> dict[str, Any]:
    store = ImageStore.default()
    assert store.find(NAME) is not None
    actions: dict[str, Callable[[], object]] = {
        "image_box": lambda: first_command(image=NAME),
        "plain_box": first_command,
    }
    with docker_image(tar) as docker, unpacked(tar) as root:
        if docker:
            actions["docker_run"] = lambda: in_docker(docker)
        if root:
            actions["bubblewrap"] = lambda: in_bubblewrap(root)
        for action in actions.values():
            action()  # what is read once is read now
        return measured(turns, **actions)


def command_times(turns: int) -> dict[str, Any]:
    with Sandbox() as plain, Sandbox(image=NAME) as image:
        for box in (plain, image):
            for _ in range(5):
                box.exec(["/bin/true"])
        found: dict[str, Any] = measured(
            turns, image_box=lambda: image.exec(["/bin/true"]), plain_box=lambda: plain.exec(["/bin/true"])
        )
    found["image_to_plain"] = round(found["image_box"]["p50_ms"] / found["plain_box"]["p50_ms"], 3)
    return found


def fork_times(turns: int) -> dict[str, Any]:
    """Each turn has a new box, since a box that was forked has its changes in a layer already."""
    times: list[float] = []
    again: list[float] = []
    write = f"mkdir /big; for n in 1 2 3 4 5 6 7 8 9 10; do head -c {CHANGED_MB // 10}M /dev/zero > /big/$n; done"
    for _ in range(turns):
        with Sandbox(Spec(image=NAME, root_mb=1024), limits=Limits(memory_mb=1024)) as box:
            assert box.exec(["sh", "-c", write]).ok
            for into in (times, again):
                start = time.perf_counter()
                (fork,) = box.fork(1)
                into.append((time.perf_counter() - start) * 1000)
                with fork:
                    assert fork.exec(["sh", "-c", "test -s /big/10"]).ok
    return {"changed_mb": CHANGED_MB, "first": summary(times), "again": summary(again)}


def used_mb() -> float:
    """Memory that is neither free nor page cache, beside what the kernel could give back."""
    fields = {
        line.split(":")[0]: int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if ":" in line
    }
    cache = fields["Cached"] + fields["Buffers"] - fields["Shmem"] + fields["SReclaimable"]
    return (fields["MemTotal"] - fields["MemFree"] - cache) / 1024


def memory(count: int, *, files: bool) -> dict[str, Any]:
    """With `files`, each box has also started the server of its files."""
    with Sandbox(image=NAME) as warm, contextlib.ExitStack() as boxes:
        warm.exec(["/bin/true"])
        before = used_mb()
        for _ in range(count):
            box = boxes.enter_context(Sandbox(image=NAME))
            assert box.exec(["sh", "-c", "echo x > /etc/changed"]).ok
            if files:
                box.write("/tmp/file", b"x")
        time.sleep(1)
        after = used_mb()
    return {"boxes": count, "mb_each": round((after - before) / count, 2)}


def disk(images: int, environments: int) -> dict[str, Any]:
    """What images that share layers take on disk, against as many trees with all of their files. Their shape is that of
    a benchmark of repositories: one system, an environment for each group of tasks, a repository for each task. Sizes
    are a hundredth of what is usual."""
    with tempfile.TemporaryDirectory(prefix="harena-bench-shared-") as name:
        folder = Path(name)
        store = ImageStore(folder / "store", settings=ImageSettings(folder / "store"))
        flattened = tree(folder / "system", 400, 5_000)
        subprocess.run(["tar", "-C", folder / "system", "-cf", folder / "system.tar", "."], check=True)
        store.import_file(folder / "system.tar", name="system:1", is_root=True)
        flattened *= images
        for number in range(environments):
            context = folder / f"environment-{number}"
            size = tree(context / "opt", 600, 7_000)
            flattened += size * (images // environments)
            built(store, context, "FROM system:1\nCOPY opt /opt\n", f"environment:{number}")
        for number in range(images):
            context = folder / f"task-{number}"
            flattened += tree(context / "testbed", 80, 5_000)
            of = number % environments
            built(store, context, f"FROM environment:{of}\nCOPY testbed /testbed\n", f"task:{number}")
            shutil.rmtree(context)
        shared = du(folder / "store")
        assert len(store.images()) == images + environments + 1
    return {
        "images": images,
        "store_mb": round(shared / (1 << 20)),
        "flattened_mb": round(flattened / (1 << 20)),
        "share": round(shared / flattened, 4),
    }


def tree(folder: Path, files: int, size: int) -> int:
    """Write files that no other tree has. Return what they take on disk."""
    for number in range(files):
        path = folder / f"part{number % 20}" / f"file{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    return du(folder)


def du(folder: Path) -> int:
    return int(subprocess.check_output(["du", "-s", "--block-size=1", folder], text=True).split()[0])


def built(store: ImageStore, context: Path, dockerfile: str, name: str) -> None:
    (context / "Dockerfile").write_text(dockerfile)
    build(store, context, name=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="tar of a root file system")
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="harena-bench-images-") as folder:
        os.environ.setdefault("HARENA_IMAGES", folder)
        store = ImageStore.default()
        image = store.find(NAME) or store.import_file(options.root, name=NAME, is_root=True)[0]
        report = {
            "image_mb": round(image.size_bytes / (1 << 20)),
            "ids": store.layers.ids.kind,
            "load": os.getloadavg()[0],
            "first_command": start_times(options.root, options.turns),
            "exec_true": command_times(options.turns * 5),
            "fork": fork_times(max(5, options.turns // 4)),
            "memory": memory(BOXES, files=False),
            "memory_with_files": memory(BOXES, files=True),
            "disk": disk(500, 25),
        }
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
