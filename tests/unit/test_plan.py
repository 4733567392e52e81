"""What a box can see is decided here, word by word, before anything is made."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import Mount, Spec, SpecError
from harena.backends.local.launch import etc, plan

AGENT = Path("/agent/guest")
ARGUMENTS = {"host": 1, "bind": 3, "tmpfs": 2, "dir": 2, "link": 2, "file": 2, "proc": 1, "ro": 1}


def steps(spec: Spec) -> Iterator[tuple[str, ...]]:
    """The plan as the launcher reads it: a verb and its arguments."""
    words, _ = plan.plan(spec, agent=AGENT, native=Path("/agent/zygote.so"))
    at = 0
    while at < len(words):
        end = at + 1 + ARGUMENTS[words[at]]
        assert end <= len(words)
        yield tuple(words[at:end])
        at = end


def binds(spec: Spec) -> list[tuple[str, str, str]]:
    return [(step[1], step[2], step[3]) for step in steps(spec) if step[0] == "bind"]


def test_every_bind_is_read_only_but_devices_and_what_was_asked_for(tmp_path: Path) -> None:
    spec = Spec(mounts=(Mount(source=str(tmp_path), target="/w", writable=True), Mount(source="/usr", target="/r")))
    modes = {target: mode for _, target, mode in binds(spec)}
    assert modes.pop("/w") == "rw"
    assert {target for target, mode in modes.items() if mode == "dev"} == {f"/dev/{name}" for name in plan.DEVICES}
    assert {mode for target, mode in modes.items() if not target.startswith("/dev/")} == {"ro"}


def test_nothing_of_the_host_is_bound_but_its_system_and_python() -> None:
    allowed = (
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/dev/",
        "/etc/ld.so.cache",
        "/etc/alternatives",
        "/etc/fonts",
        "/etc/java-",
        "/etc/mime.types",
        "/etc/pki/ca-trust/extracted",
        "/etc/pki/java",
        "/etc/ssl/cert.pem",
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/ssl/certs/java/cacerts",
        "/etc/terminfo",
        "/agent",
        sys.base_prefix,
    )
    assert [source for source, _, _ in binds(Spec()) if not source.startswith(allowed)] == []


def test_every_place_is_made_after_the_place_it_is_in() -> None:
    """A mount hides what lies below it, so the outer ones come first; nothing is made below a read-only one."""
    sealed: list[str] = []
    mounted: list[str] = []
    for verb, *rest in steps(Spec()):
        if verb == "ro":
            sealed.append(rest[0])
            continue
        target = {"bind": 1, "link": 1}.get(verb, 0)
        if verb in {"bind", "tmpfs", "proc"}:
            place = rest[target]
            assert not [other for other in mounted if other.startswith(place + "/")], f"{place} hides what is there"
            assert not [other for other in sealed if place.startswith(other + "/")], f"{place} lies in a sealed place"
            mounted.append(place)


@pytest.mark.parametrize("prefix", ["/usr", "/opt/python", "/root/.local/python", "/tmp/python"])
def test_plan_holds_for_any_place_of_python(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    monkeypatch.setattr(sys, "base_prefix", prefix)
    monkeypatch.setattr(os.path, "isdir", lambda path: True)
    test_every_place_is_made_after_the_place_it_is_in()


def test_packages_of_the_interpreter_are_hidden() -> None:
    _, python = plan.plan(Spec(), agent=AGENT, native=None)
    hidden = {step[1] for step in steps(Spec()) if step[0] == "tmpfs"}
    assert set(python.hidden) <= hidden
    assert all(path.rstrip("/").endswith(("packages", "lib")) for path in python.hidden)


def test_sizes_are_those_of_the_spec() -> None:
    sizes = {step[1]: step[2] for step in steps(Spec(workspace_mb=3)) if step[0] == "tmpfs"}
    for place in ("/workspace", "/tmp", "/dev/shm"):
        assert f"size={3 << 20}," in sizes[place]


@pytest.mark.parametrize(
    "target", ["/proc", "/dev/x", "/sys/fs", "/", "//", "/tmp", "/tmp/", "/workspace/.", "/.harena"]
)
def test_places_of_the_box_cannot_be_mounted_over(target: str) -> None:
    with pytest.raises(SpecError, match="keeps this place"):
        plan.plan(Spec(mounts=(Mount(source="/usr", target=target),)), agent=AGENT, native=None)


def test_mount_source_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not exist"):
        plan.plan(Spec(mounts=(Mount(source=str(tmp_path / "x"), target="/x"),)), agent=AGENT, native=None)


def test_mounts_are_writable_for_landlock_only_when_asked(tmp_path: Path) -> None:
    mounts = (Mount(source="/usr", target="/r"), Mount(source=str(tmp_path), target="/w", writable=True))
    assert set(plan.writable_paths(Spec(mounts=mounts))) == {"/workspace", "/tmp", "/dev", "/w"}


def test_environment_is_small_and_the_specs_wins() -> None:
    _, python = plan.plan(Spec(), agent=AGENT, native=None)
    env = plan.environment(Spec(env={"HOME": "/tmp", "A": "1"}), python)
    assert (env["HOME"], env["A"]) == ("/tmp", "1")
    assert set(env) == {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONDONTWRITEBYTECODE", "USER", "A"}
    assert str(Path(python.executable).parent) in env["PATH"].split(":")


def test_packages_bring_what_they_require() -> None:
    names = {path.name for path in plan.package_entries(("pytest",))}
    assert {"pytest", "_pytest", "pluggy", "iniconfig", "packaging"} <= names
    assert not {"hypothesis", "xdist", "..", "__pycache__"} & names


def test_packages_may_be_spelled_in_any_way() -> None:
    assert plan.package_entries(("Pytest_Timeout",)) == plan.package_entries(("pytest-timeout",)) != []


def test_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(SpecError, match="no-such-thing"):
        plan.package_entries(("no.such_thing",))


def test_rootfs_takes_the_place_of_usr(tmp_path: Path) -> None:
    for name in ("bin", "usr", "proc", "dev", "etc", "tmp", "workspace", ".harena"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib").symlink_to("usr/lib")
    for name in ("passwd", "shadow", "os-release"):
        (tmp_path / "etc" / name).write_text("")
    spec = Spec(rootfs=str(tmp_path))
    found = {(source, target) for source, target, _ in binds(spec) if not source.startswith(("/dev/", "/agent/"))}
    assert found == {(str(tmp_path / name), f"/{name}") for name in ("bin", "usr", "etc/os-release")}
    assert ("link", "usr/lib", "/lib") in set(steps(spec))


def test_rootfs_with_packages_of_the_host_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="rootfs"):
        plan.plan(Spec(rootfs=str(tmp_path), packages=("pytest",)), agent=AGENT, native=None)


def test_python_may_be_an_interpreter_or_an_environment(tmp_path: Path) -> None:
    interpreter = tmp_path / "bin" / "python3"
    interpreter.parent.mkdir()
    interpreter.symlink_to("/usr/bin/env")
    (tmp_path / "pyvenv.cfg").write_text("")
    for given in (tmp_path, interpreter):
        python = plan.find_python(Spec(python=str(given)))
        assert (python.executable, python.folders) == (str(interpreter), (str(tmp_path),))
    with pytest.raises(SpecError, match="no interpreter"):
        plan.find_python(Spec(python="/no/such/python"))


@pytest.mark.root
def test_only_what_everybody_may_read_is_shown_of_etc(tmp_path: Path) -> None:
    top = tmp_path / "etc"
    (top / "fonts").mkdir(parents=True)
    for folder in (top, *top.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    conf = top / "fonts" / "fonts.conf"
    conf.write_text("x")
    (top / "fonts" / "link").symlink_to("/root/secret")
    assert etc.is_public(str(top / "fonts"))
    for spoil, mend in (
        (lambda: conf.chmod(0o640), lambda: conf.chmod(0o644)),
        (lambda: os.chown(conf, 1234, 0), lambda: os.chown(conf, 0, 0)),
        (lambda: (top / "fonts").chmod(0o754), lambda: (top / "fonts").chmod(0o755)),
        (lambda: top.chmod(0o700), lambda: top.chmod(0o755)),
        (lambda: os.mkfifo(top / "fonts" / "pipe"), lambda: (top / "fonts" / "pipe").unlink()),
    ):
        spoil()
        assert not etc.is_public(str(top / "fonts"))
        mend()
    assert etc.is_public(str(top / "fonts"))
