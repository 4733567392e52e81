"""A store is consistent after a crash at any moment, and processes that share it do not disturb each other."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harena.images import ImageStore
from harena.images.settings import ImageSettings
from support.registries import Registry, tar_of

pytestmark = pytest.mark.thorough

HERE = Path(__file__).parent
LAYERS = [tar_of({"etc": None, "etc/name": b"base"}), tar_of({"data": b"data" * 5000})]

PULL = """
import sys
from pathlib import Path
from harena.images import ImageError, ImageStore
from harena.images.settings import ImageSettings
from harena.images.registry.transport import TransportPatience
store = ImageStore(sys.argv[1], settings=ImageSettings(Path(sys.argv[1])), patience=TransportPatience(attempts=2, backoff_s=0.01))
print("ready", flush=True)
try:
    print(store.pull(sys.argv[2]).digest)
except ImageError as error:
    print(type(error).__name__, error)
"""


def start_pull(folder: Path, image: str, **more: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PULL, str(folder), image],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ends(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip()


@pytest.mark.slow
@pytest.mark.parametrize(("action", "least"), [("pull", 20), ("remove", 8), ("gc", 8)])
def test_a_kill_at_any_step_leaves_a_consistent_store(
    registry: Registry, tmp_path: Path, action: str, least: int
) -> None:
    image = registry.tag("app", registry.add_image(LAYERS))
    stride = 3 if action == "pull" else 2
    done = subprocess.run(
        [sys.executable, str(HERE / "killing.py"), str(tmp_path), action, image, str(stride)],
        capture_output=True, text=True, timeout=115, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert told["killed"] >= least


def test_two_processes_make_one_download(registry: Registry, tmp_path: Path) -> None:
    big = tar_of({"big": os.urandom(600_000)})
    image = registry.tag("app", manifest := registry.add_image([big]))
    registry.pause_s = 0.1
    processes = [start_pull(tmp_path / "store", image) for _ in range(3)]
    assert {ends(process) for process in processes} == {manifest["digest"]}
    layer = json.loads(registry.data[manifest["digest"]])["layers"][0]
    assert registry.served[layer["digest"]] == layer["size"]


def test_a_waiting_process_continues_the_download_of_a_killed_one(registry: Registry, tmp_path: Path) -> None:
    big = tar_of({"big": os.urandom(9_000_000)})
    image = registry.tag("app", manifest := registry.add_image([big]))
    layer = json.loads(registry.data[manifest["digest"]])["layers"][0]
    registry.pause_s = 0.1  # 14 seconds for all of it
    partial = tmp_path / "store" / "partial" / layer["digest"].replace(":", "-")
    first = start_pull(tmp_path / "store", image)
    ends_at = time.monotonic() + 30
    while not (partial.exists() and partial.stat().st_size > 200_000):
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    second = start_pull(tmp_path / "store", image)
    time.sleep(0.2)
    first.kill()
    first.communicate()
    registry.pause_s = 0.0
    assert ends(second) == manifest["digest"]
    ranges = [headers["Range"] for path, headers in registry.seen if layer["digest"] in path and "Range" in headers]
    assert len(ranges) == 1
    assert int(ranges[0].removeprefix("bytes=").rstrip("-")) > 200_000


def test_a_file_that_may_not_grow_is_an_error_with_a_fix(registry: Registry, tmp_path: Path) -> None:
    image = registry.tag("app", registry.add_image([tar_of({"big": os.urandom(900_000)})]))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # noqa: E731
    told = ends(start_pull(tmp_path / "store", image, preexec_fn=limit))
    assert told.startswith("ImageStoreError a layer cannot be stored: files may not be that large; free space")
    assert list((tmp_path / "store" / "partial").iterdir()) == []
    assert ends(start_pull(tmp_path / "store", image)).startswith("sha256:")


@pytest.mark.root
@pytest.mark.parametrize("size", ["600k", "1500k"], ids=["while downloading", "while unpacking"])
def test_a_full_disk_is_an_error_and_stays_usable(registry: Registry, tmp_path: Path, size: str) -> None:
    data = os.urandom(900_000)
    image = registry.tag("app", registry.add_image([tar_of({"big": data})]))
    small = registry.tag("small", registry.add_image([tar_of({"x": b"1"})]))
    script = f"""
mount -t tmpfs -o size={size},mode=700 none {tmp_path} || exit 77
{sys.executable} -c '{PULL}' {tmp_path}/store {image}
{sys.executable} -c '{PULL}' {tmp_path}/store {small}
find {tmp_path}/store/tmp {tmp_path}/store/partial -mindepth 1"""
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip("host: tmpfs cannot be mounted")
    lines = [line for line in done.stdout.splitlines() if line != "ready"]
    assert len(lines) == 2, done
    assert "full" in lines[0] or "No space left" in lines[0]
    assert lines[1].startswith("sha256:")


HOLD = """
import sys, time
from pathlib import Path
from harena.images import ImageStore
from harena.images.settings import ImageSettings
store = ImageStore(sys.argv[1], settings=ImageSettings(Path(sys.argv[1])))
lease = store.find(sys.argv[2]).lease()
print(lease.layers[0], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["remove", "gc"])
def test_a_layer_that_another_process_uses_stays_until_it_ends(registry: Registry, store: ImageStore, how: str) -> None:
    image = registry.tag("app", registry.add_image(LAYERS))
    store.pull(image)
    user = subprocess.Popen([sys.executable, "-c", HOLD, str(store.folder), image], stdout=subprocess.PIPE, text=True)
    try:
        assert user.stdout is not None
        held = Path(user.stdout.readline().strip())
        if how == "remove":
            assert store.remove(image).in_use == 2
            assert store.find(image) is None
        else:
            assert store.gc(max_bytes=0).images == ()
            assert store.find(image) is not None
        assert (held / "etc/name").read_bytes() == b"base"
    finally:
        user.kill()
        user.communicate()
    done = store.gc(max_bytes=0)
    assert (done.layers, done.in_use) == (2, 0)
    assert not held.exists()


def test_a_child_that_inherits_a_lease_holds_it(registry: Registry, store: ImageStore) -> None:
    image = store.pull(registry.tag("app", registry.add_image(LAYERS)))
    with image.lease() as lease:
        child = subprocess.Popen(["sleep", "60"], pass_fds=lease.fds)
        other = subprocess.Popen(["sleep", "60"])  # has none of them
    try:
        assert store.remove(image.reference).in_use == 2
        child.kill()
        child.wait()
        assert store.gc().layers == 2
    finally:
        for process in (child, other):
            process.kill()
            process.wait()


def test_leases_of_one_process_count(registry: Registry, store: ImageStore) -> None:
    image = store.pull(registry.tag("app", registry.add_image(LAYERS)))
    before = len(os.listdir("/proc/self/fd"))
    leases = [image.lease() for _ in range(50)]
    assert len(os.listdir("/proc/self/fd")) - before <= 2  # one for each layer
    for lease in leases[1:]:
        lease.close()
        lease.close()
    assert store.remove(image.reference).in_use == 2
    leases[0].close()
    assert store.gc().layers == 2
    with pytest.raises(Exception, match="was removed: run `harena image pull"):
        image.lease()


def test_images_unused_for_longest_go_first(registry: Registry, store: ImageStore) -> None:
    shared = tar_of({"shared": b"s" * 100})
    names = [
        registry.tag(f"app{n}:1", registry.add_image([shared, tar_of({f"own{n}": b"o" * 1000})])) for n in range(3)
    ]
    for name in names:
        store.pull(name)
    for age_s, name in ((300, names[1]), (200, names[0]), (100, names[2])):
        path = next(path for path in (store.folder / "images").iterdir() if name in path.read_text())
        os.utime(path, (time.time() - age_s,) * 2)
    with store.find(names[0]).lease():  # a use, which makes it the newest
        pass
    done = store.gc(max_bytes=1100)
    assert done.images == (names[1], names[2])
    assert done.bytes == 2000
    assert [image.reference for image in store.images()] == [names[0]]
    assert store.gc(max_bytes=1100).images == ()


def test_the_limit_of_the_settings_holds_after_a_pull(registry: Registry, tmp_path: Path) -> None:
    store = ImageStore(tmp_path / "s", settings=ImageSettings(tmp_path, max_bytes=1500))
    one, two = (registry.tag(f"app{n}:1", registry.add_image([tar_of({f"x{n}": b"o" * 1000})])) for n in range(2))
    store.pull(one)
    store.pull(two)
    assert [image.reference for image in store.images()] == [two]


def test_removing_one_name_keeps_shared_layers(registry: Registry, store: ImageStore) -> None:
    one = registry.tag("one", registry.add_image(LAYERS))
    two = registry.tag("two", registry.add_image(LAYERS[:1]))
    store.pull(one)
    store.pull(two)
    assert store.remove(one).layers == 1
    assert store.find(two) is not None


def test_a_tag_that_moved_leaves_the_old_image_to_its_users(registry: Registry, store: ImageStore) -> None:
    name = registry.tag("app", registry.add_image(LAYERS[:1]))
    with store.pull(name).lease() as lease:
        registry.tag("app", registry.add_image(LAYERS[1:]))
        assert store.pull(name).digest != lease.image.digest
        assert store.gc().in_use == 1
        assert (Path(lease.layers[0]) / "etc/name").exists()
    assert store.gc().layers == 1


def test_a_layer_of_an_earlier_boot_that_did_not_reach_the_disk_is_not_believed(
    registry: Registry, store: ImageStore
) -> None:
    image = store.pull(registry.tag("app", registry.add_image(LAYERS[1:])))
    folder = store.layers.folder_of(image.layers[0].diff_id)
    fields = json.loads((folder / "layer.json").read_text())
    (folder / "layer.json").write_text(json.dumps({**fields, "boot": "another"}))
    store = ImageStore(store.folder, settings=store.settings)  # as the first process after the boot
    assert store.find(image.reference) is not None
    (folder / "durable").unlink()
    (folder / "layer" / "tree" / "data").write_bytes(b"")
    store = ImageStore(store.folder, settings=store.settings)
    assert store.find(image.reference) is None
    with store.pull(image.reference).lease() as lease:
        assert (Path(lease.layers[0]) / "data").read_bytes() == b"data" * 5000


def test_an_image_that_another_process_removed_or_replaced_is_not_found_again(
    registry: Registry, store: ImageStore
) -> None:
    name = registry.tag("app", registry.add_image(LAYERS[:1]))
    old = store.pull(name)
    other = ImageStore(store.folder, settings=store.settings)
    registry.tag("app", registry.add_image(LAYERS))
    assert store.find(name) == old
    new = other.pull(name)
    assert store.find(name) == new
    other.remove(name)
    assert store.find(name) is None


def test_others_cannot_enter_the_store(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o777)
    store = ImageStore(tmp_path / "open", settings=ImageSettings(tmp_path))
    assert store.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("how", ["busy", "silent"])
def test_ctrl_c_ends_a_pull_soon_and_keeps_what_came(registry: Registry, tmp_path: Path, how: str) -> None:
    image = registry.tag("app", manifest := registry.add_image([tar_of({"big": os.urandom(3_000_000)})]))
    layer = json.loads(registry.data[manifest["digest"]])["layers"][0]
    partial = tmp_path / "store" / "partial" / layer["digest"].replace(":", "-")
    partial.parent.mkdir(parents=True)
    partial.write_bytes(registry.data[layer["digest"]][:100_000])
    registry.pause_s = 20.0 if how == "silent" else 0.2
    environment = {**os.environ, "HARENA_IMAGES": str(tmp_path / "store")}
    process = subprocess.Popen(
        [sys.executable, "-m", "harena", "image", "pull", image], env=environment, stderr=subprocess.PIPE, text=True
    )
    ends_at = time.monotonic() + 30
    while not registry.paths(layer["digest"]):
        assert time.monotonic() < ends_at
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, err = process.communicate(timeout=20)
    assert time.monotonic() - started < 5
    assert process.returncode == 130
    assert "Traceback" not in err
    assert partial.stat().st_size >= 100_000
