"""GPUs of boxes, on a machine that may have none: nodes of other devices stand in for them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from harena import IsolationUnavailable, Sandbox, Spec, SpecError
from harena.backends.local.launch import gpus
from harena.errors import Unsupported

ZERO = os.makedev(1, 5)
REQUESTS = """
import fcntl, os
for path in ("/dev/nvidia1", "/dev/null"):
    for request in (0xC0204601, 0x25, 0x30000001, 0x5413, 0x4004_4D02):
        try:
            fcntl.ioctl(os.open(path, os.O_RDWR), request, bytes(64))
        except OSError as error:
            print(error.errno, end=" ")
"""
"""Requests of the driver, of its unified memory (two), of terminals, and of something else."""
EPERM, ENOTTY = 1, 25


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpus, "DEV", str(tmp_path))
    try:
        for name in ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
            os.mknod(tmp_path / name, 0o666 | stat.S_IFCHR, ZERO)
            os.chmod(tmp_path / name, 0o666)
    except PermissionError:
        pytest.skip("host: only root makes device nodes")
    return tmp_path


@pytest.mark.parametrize("bad", [-1, 65, True, 1.0, "1", "every", ("x",), ("0", "0"), (0,), None])
def test_what_names_no_gpus_is_refused(bad: object) -> None:
    with pytest.raises(SpecError, match="gpus"):
        Spec(gpus=bad)  # pyright: ignore[reportArgumentType]


def test_a_machine_without_gpus_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.path.exists("/dev/nvidia0"):
        monkeypatch.setattr(gpus, "DEV", str(tmp_path))
    with pytest.raises(IsolationUnavailable, match="nvidia0"):
        Sandbox(Spec(gpus=1))
    Sandbox(Spec(gpus=0)).close()
    Sandbox(Spec(gpus=())).close()


def test_other_kinds_of_boxes_refuse_gpus() -> None:
    for spec in (Spec(gpus=1, image="none:1"), Spec(gpus=1, isolation="restricted")):
        with pytest.raises(Unsupported, match=r"gpus|GPUs"):
            Sandbox(spec)


@pytest.mark.root
def test_a_box_has_the_chosen_nodes_and_no_others(nodes: Path) -> None:
    for wanted, names, visible in (
        (("1",), ["nvidia-uvm", "nvidia1", "nvidiactl"], "0"),
        (2, ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"], "0,1"),
        ("all", ["nvidia-uvm", "nvidia0", "nvidia1", "nvidia10", "nvidiactl"], "0,1,2"),
    ):
        with Sandbox(Spec(gpus=wanted)) as box:
            found = box.exec(["sh", "-c", "ls /dev | grep nvidia; echo $CUDA_VISIBLE_DEVICES"]).stdout.decode().split()
            assert found == [*names, visible]
            assert box.exec(["head", "-c", "3", f"/dev/{names[1]}"]).stdout == bytes(3)
    with Sandbox() as box:
        assert box.exec(["sh", "-c", "ls /dev | grep nvidia; echo $CUDA_VISIBLE_DEVICES"]).stdout == b"\n"


@pytest.mark.root
def test_only_a_box_with_gpus_may_send_requests_to_the_driver(nodes: Path) -> None:
    with Sandbox(Spec(gpus=2)) as box:
        answers = list(map(int, box.exec(["python3", "-c", REQUESTS]).stdout.split()))
        assert answers == [ENOTTY, ENOTTY, ENOTTY, ENOTTY, EPERM] * 2
        assert box.exec(["sh", "-c", "echo name > /proc/self/comm"]).ok
        assert not box.exec(["sh", "-c", "echo x > /proc/sys/kernel/hostname"]).ok
    with Sandbox() as box:
        answers = list(map(int, box.exec(["python3", "-c", REQUESTS.replace("nvidia1", "zero")]).stdout.split()))
        assert answers == [EPERM, EPERM, EPERM, ENOTTY, EPERM] * 2


@pytest.mark.root
def test_a_missing_node_is_named(nodes: Path) -> None:
    with pytest.raises(IsolationUnavailable, match="has 3 GPUs, not 4"):
        gpus.find(4)
    with pytest.raises(IsolationUnavailable, match=r"nvidia7.*there is 0, 1, 10"):
        gpus.find(("7",))
    (nodes / "nvidia-uvm").unlink()
    (nodes / "nvidia-uvm").write_text("not a device")
    with pytest.raises(IsolationUnavailable, match=r"nvidia-uvm.*nvidia-modprobe"):
        gpus.find(1)
