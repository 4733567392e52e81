from __future__ import annotations

import errno
import json
import pickle
from pathlib import Path

import pytest

from harena.azr import checkpoint
from harena.azr.checkpoint import BadCheckpoint, Checkpoint


def made(step: int = 1, **learner: object) -> Checkpoint:
    return Checkpoint(
        step=step, state={"number": step, "big": 2**100, "third": 1 / 3}, learner={"w": [0.1, 1e-300], **learner}
    )


def test_plain_data_comes_back_bit_for_bit(tmp_path: Path) -> None:
    place = checkpoint.save(tmp_path, made())
    assert checkpoint.load(place) == made()
    assert sorted(path.name for path in place.iterdir()) == ["learner.json", "state.json"]


def test_tensors_come_back_bit_for_bit_and_without_running_anything(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    place = checkpoint.save(tmp_path, made(tensors={"a": tensor, "betas": (0.9, 0.95)}))
    found = checkpoint.load(place).learner["tensors"]
    assert found["a"].dtype is torch.bfloat16
    assert torch.equal(found["a"], tensor)
    assert found["betas"] == (0.9, 0.95)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("owned",)


def test_a_file_that_would_run_something_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    place = checkpoint.save(tmp_path, made())
    (place / "learner.json").unlink()
    for write in (torch.save, lambda data, path: path.write_bytes(pickle.dumps(data, protocol=2))):
        write({"w": Evil()}, place / "learner.pt")
        with pytest.raises(BadCheckpoint, match="learner"):
            checkpoint.load(place)
    assert "owned" not in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["one bit", "cut short", "empty", "another file", "gone"])
def test_damage_is_noticed(tmp_path: Path, damage: str) -> None:
    torch = pytest.importorskip("torch")
    place = checkpoint.save(tmp_path, made(tensor=torch.arange(10_000)))
    file = place / "learner.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    match damage:
        case "one bit":
            file.write_bytes(data)
        case "cut short":
            file.write_bytes(data[:1_000])
        case "gone":
            file.unlink()
        case _:
            file.write_bytes(b"" if damage == "empty" else b"root:x:0:0\n" * 99)
    with pytest.raises(BadCheckpoint, match="cannot be read: "):
        checkpoint.load(place)


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")

    def full(*_: object) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        finally:
            raise RuntimeError("unexpected pos 383872 vs 383764")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path, made(tensor=torch.arange(3)))
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_goes_with_the_next_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".new-123").mkdir()
    (tmp_path / ".new-123" / "learner.pt").write_bytes(b"half")
    checkpoint.save(tmp_path, made(1))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 10, 3, 1_000_000):
        checkpoint.save(tmp_path, made(step), keep=2)
    assert [path.name for path in checkpoint.listed(tmp_path)] == ["step-000010", "step-1000000"]
    latest = checkpoint.latest(tmp_path)
    assert latest is not None
    assert checkpoint.load(latest).step == 1_000_000


def test_the_same_step_may_be_saved_again(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, made(4))
    assert checkpoint.load(checkpoint.save(tmp_path, made(4, more=1))).learner["more"] == 1


def test_a_save_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, made(1))
    with pytest.raises(ValueError):
        checkpoint.save(tmp_path, Checkpoint(step=2, state={"x": float("nan")}, learner={}))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000001"]


def test_half_a_checkpoint_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / ".new-123").mkdir()
    (tmp_path / "step-x").mkdir()
    assert checkpoint.latest(tmp_path) is None
    assert checkpoint.latest(tmp_path / "none") is None


@pytest.mark.parametrize(
    "head",
    [
        "",
        "[]",
        "{}",
        '{"format": 99, "step": 1, "state": {}}',
        '{"format": 1, "step": "1", "state": {}}',
        '{"format": 1, "step": 1, "state": []}',
    ],
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, head: str) -> None:
    place = checkpoint.save(tmp_path, made())
    (place / "state.json").write_text(head)
    with pytest.raises(BadCheckpoint):
        checkpoint.load(place)


def test_a_learner_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    place = checkpoint.save(tmp_path, made())
    (place / "learner.json").write_text("[1]")
    with pytest.raises(BadCheckpoint):
        checkpoint.load(place)


def test_is_json_knows_what_json_would_change() -> None:
    assert checkpoint.is_json({"a": [1, 2.5, None, "x", True]})
    for value in ((1,), {1: 2}, float("inf"), b"x", {"a": (1,)}):
        assert not checkpoint.is_json(value)
    assert json.loads(json.dumps(0.1)) == 0.1
