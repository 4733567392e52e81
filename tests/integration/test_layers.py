"""The doctor against boxes that lack one layer: each is noticed, by the probe that stands for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harena import Spec
from harena.backends.local import backend
from harena.backends.local import box as local_box
from harena.backends.local.launch import bubblewrap, cgroups, plan
from harena.backends.local.policy import seccomp, syscalls
from harena.images import ImageStore
from harena.sandbox import backend as backends
from harena.sandbox import doctor
from harena.sandbox.doctor import probes
from support import mutants
from support.layers import GUEST, IMAGE_LAYERS, LAYERS, NO_LAYER, PROTECTIVE, Layer
from support.roots import python_entries, write_tar

NATIVE = [
    pytest.param(layer, id=layer.name, marks=[pytest.mark.thorough] if number % 6 else [])
    for number, layer in enumerate(layer for layer in LAYERS if layer.native)
]
BUBBLEWRAP = [
    pytest.param(layer, id=layer.name, marks=[pytest.mark.soak] if number % 3 else [pytest.mark.thorough])
    for number, layer in enumerate(layer for layer in LAYERS if layer.bubblewrap)
]


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """What is found once for a process is found anew for each test."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    for cached in (cgroups.find, backend._filters, seccomp._assemble, backends.load):  # pyright: ignore[reportPrivateUsage]
        cached.cache_clear()


def diagnose(monkeypatch: pytest.MonkeyPatch, *names: str, image: str | None = None) -> doctor.Report:
    """The doctor's word after the first control and the named steps."""
    whole = doctor.Ring._plan  # pyright: ignore[reportPrivateUsage]
    kept = {probes.CONTROLS[0].name, *names}
    monkeypatch.setattr(doctor.Ring, "_plan", lambda ring: [step for step in whole(ring) if step[0] in kept])
    return doctor.run_doctor(image=image)


def check(monkeypatch: pytest.MonkeyPatch, layer: Layer, image: str | None = None) -> None:
    if layer.cgroups is True and not cgroups.find().version:
        pytest.skip("host: no cgroups to write")
    if layer.cgroups is False:
        monkeypatch.setenv("HARENA_CGROUPS", "off")
        cgroups.find.cache_clear()
    if layer.root and os.geteuid() != 0:
        pytest.skip("host: not root")
    if layer.grace_s is not None:
        monkeypatch.setattr(local_box, "GRACE_S", layer.grace_s)
    report = diagnose(monkeypatch, *layer.seen_by, image=image)
    works, *results = report.probes or (None,)
    if layer.refused and (report.missing or (works and not works.held)):
        return
    assert report.missing is None
    assert works is not None
    assert works.held, f"the box without it does not work, so this says nothing: {works.detail}"
    assert {result.name for result in results} == set(layer.seen_by)
    failed = [result for result in results if not result.held]
    assert failed, f"nobody noticed: {results}"
    assert layer.refused or not all(result.detail.startswith(("not run", "it could not run")) for result in failed), (
        failed
    )


def use_native(monkeypatch: pytest.MonkeyPatch, layer: Layer) -> None:
    folder = mutants.build(layer.native)
    monkeypatch.setenv("HARENA_LAUNCHER", "native")
    monkeypatch.setattr(backend, "NATIVE", folder)
    monkeypatch.setattr(backend, "FORK_FLAGS", backend.FORK_FLAGS & ~layer.fork_flags)
    monkeypatch.setattr(backend, "LAUNCHER", folder / "harena-box")


def again(layer: Layer, launcher: str) -> None:
    """The same in a process that was started in another way."""
    if subprocess.run([*layer.run_as, "true"], capture_output=True).returncode:
        pytest.skip(f"host: cannot {' '.join(layer.run_as)}")
    code = f"from integration import test_layers; test_layers.alone({layer.name!r}, {launcher!r})"
    command = [*layer.run_as, sys.executable, "-c", code]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def alone(name: str, launcher: str) -> None:
    layer = next(layer for layer in LAYERS if layer.name == name)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_native(monkeypatch, layer) if launcher == "native" else use_bubblewrap(monkeypatch, layer)
        check(monkeypatch, layer)


@pytest.mark.parametrize("layer", NATIVE)
def test_a_box_without_this_layer_is_noticed(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    if layer.root and os.geteuid() != 0:
        pytest.skip("host: not root")
    if layer.run_as:
        return again(layer, "native")
    use_native(monkeypatch, layer)
    check(monkeypatch, layer)


def use_bubblewrap(monkeypatch: pytest.MonkeyPatch, layer: Layer) -> None:
    monkeypatch.setenv("HARENA_LAUNCHER", "bubblewrap")
    agent = mutants.edited_guest([edit for edit in layer.bubblewrap if edit.file == GUEST])
    monkeypatch.setattr(backend, "agent_folder", lambda: agent)
    dropped = {edit.old: edit.new for edit in layer.bubblewrap if edit.file == "arguments"}
    if not dropped:
        return
    whole = bubblewrap.order

    def order(*args: object) -> list[str]:
        words: list[str] = []
        told = whole(*args)  # pyright: ignore[reportArgumentType]
        assert set(dropped) <= set(told)
        for verb, value in zip(told[::2], told[1::2], strict=True):
            if verb != "arg" or value not in dropped:
                words += [verb, value]
            elif dropped[value]:
                words += [verb, dropped[value]]
        return words

    monkeypatch.setattr(bubblewrap, "order", order)


@pytest.mark.slow
@pytest.mark.parametrize("layer", BUBBLEWRAP)
def test_a_box_of_bubblewrap_without_this_layer_is_noticed(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    if layer.run_as:
        return again(layer, "bubblewrap")
    use_bubblewrap(monkeypatch, layer)
    check(monkeypatch, layer)


def test_every_protective_word_of_the_sources_is_in_a_layer() -> None:
    """A new one needs a layer, with a probe that notices when it is gone; or a reason why it is none."""
    texts = mutants.sources()
    taken: set[tuple[str, int]] = set()
    for edit in (edit for layer in (*LAYERS, *IMAGE_LAYERS) for edit in layer.native):
        for match in re.finditer(edit.old, texts[edit.file]):
            kept = Counter(PROTECTIVE.findall(match.expand(edit.new)))
            for word in PROTECTIVE.finditer(texts[edit.file], *match.span()):
                if not kept[word[0]]:
                    taken.add((edit.file, word.start()))
    for file, text in texts.items():
        for reason in NO_LAYER:
            for match in re.finditer(reason, text):
                taken |= {(file, word.start()) for word in PROTECTIVE.finditer(text, *match.span())}
    left = [
        f"{file}:{text[: word.start()].count(chr(10)) + 1} {word[0]}"
        for file, text in texts.items()
        for word in PROTECTIVE.finditer(text)
        if (file, word.start()) not in taken
    ]
    assert not left, "\n".join(left)


def test_no_exception_is_for_nothing() -> None:
    texts = mutants.sources().values()
    assert [reason for reason in NO_LAYER if not any(re.search(reason, text) for text in texts)] == []


# ---- the filter: one box without any of its rules shows which of them have a probe ----


def rules(profile: seccomp.Profile) -> set[str]:
    """What the filter refuses, or looks at more closely."""
    forks = backend.FORK_FLAGS if profile is seccomp.Profile.INTERPRETER else None
    actions = seccomp.policy(profile, forks)
    return {name for name in syscalls.NUMBERS[os.uname().machine] if actions.get(name, seccomp.EPERM) != seccomp.ALLOW}


def test_every_rule_of_the_filter_has_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt depends on one rule alone, so all are taken away at once."""
    found = backend.LocalBackend().capabilities()
    everything = dict.fromkeys(syscalls.NUMBERS[os.uname().machine], seccomp.ALLOW)
    monkeypatch.setattr(seccomp, "policy", lambda *args, **kwargs: everything)
    said: dict[str, str] = {}
    with doctor.Host() as host, doctor.Ring("local", Spec(workspace_mb=16), host, found) as ring:
        for name in ("kernel.refused_calls", "kernel.refused_arguments", "network.families", "kernel.user_namespaces"):
            probe = next(probe for probe in probes.PROBES if probe.name == name)
            source = ring._source(probes.MAP, f"{probe.source}\nfinish()\n")  # pyright: ignore[reportPrivateUsage]
            said[name] = ring._enter(probes.MAP, source).stdout.decode()  # pyright: ignore[reportPrivateUsage]
    escaped = set(re.findall(r"^ESCAPED: (?:call )?(\w+)", "".join(said.values()), re.MULTILINE))
    monkeypatch.undo()
    unseen = rules(seccomp.Profile.SESSION) - escaped
    assert not unseen - KERNEL_REFUSES, " ".join(sorted(unseen - KERNEL_REFUSES))
    tried = {entry.partition(":")[0] for entry in probes.REFUSED.split()}
    assert tried >= KERNEL_REFUSES


KERNEL_REFUSES = {
    entry
    for entries in (
        "_sysctl acct afs_syscall create_module delete_module epoll_ctl_old epoll_wait_old fanotify_init finit_module",
        "fsmount fsopen fspick get_kernel_syms get_thread_area getpmsg init_module ioperm iopl kexec_file_load kexec_load",
        "lookup_dcookie map_shadow_stack move_mount nfsservctl pivot_root putpmsg query_module reboot security set_thread_area",
        "setdomainname sethostname swapoff swapon syslog tuxcall uselib vhangup vserver",
    )
    for entry in entries.split()
}
"""Calls for which a guest without capabilities, or any, gets EPERM or ENOSYS from the kernel itself: a filter that lets
them through looks the same. They are tried nevertheless."""


def test_calls_are_tried_by_their_right_numbers() -> None:
    numbers = {}
    exec(probes.TOOLS.partition("refusals, escapes")[0], numbers)
    for name, (x86_64, aarch64) in numbers["NUMBERS"].items():
        assert x86_64 == syscalls.NUMBERS["x86_64"].get(name)
        assert aarch64 == syscalls.NUMBERS["aarch64"].get(name)


def test_the_flags_of_a_fork_are_those_of_the_launcher() -> None:
    assert probes.FORK_FLAGS == backend.FORK_FLAGS


def test_programs_with_the_filter_of_sessions_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = seccomp.policy

    def policy(profile: seccomp.Profile, *args: Any, **kwargs: Any) -> Any:
        return whole(seccomp.Profile.SESSION if profile is seccomp.Profile.PROGRAM else profile, *args, **kwargs)

    monkeypatch.setattr(seccomp, "policy", policy)
    assert not diagnose(monkeypatch, "network.programs").ok


# ---- what Python decides ----


def test_a_plan_that_shows_more_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan._host_system  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(plan, "_host_system", lambda: [*whole(), "bind", "/var", "/var", "ro"])
    assert not diagnose(monkeypatch, "files.read_host").ok


def test_paths_that_landlock_leaves_writable_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "writable_paths", lambda spec: ["/"])
    assert not diagnose(monkeypatch, "files.landlock").ok


def test_the_environment_of_the_host_in_a_box_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan.environment
    monkeypatch.setattr(plan, "environment", lambda *args: {**os.environ, **whole(*args)})
    assert not diagnose(monkeypatch, "inherited.environment").ok


# ---- boxes from images ----


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_IMAGES", str(folder / "store"))
        tar = write_tar(folder / "root.tar", python_entries())
        yield ImageStore.default().import_file(tar, name="python:1", is_root=True)[0].reference


@pytest.mark.services
def test_every_probe_holds_in_an_image(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {name for layer in IMAGE_LAYERS for name in layer.seen_by}
    report = diagnose(monkeypatch, *names, image=image)
    assert report.ok, [probe for probe in report.probes if not probe.held]
    assert len(report.probes) == len(names) + 1


@pytest.mark.services
@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layer, id=layer.name, marks=[pytest.mark.thorough] if number % 4 else [])
        for number, layer in enumerate(IMAGE_LAYERS)
    ],
)
def test_a_box_from_an_image_without_this_layer_is_noticed(
    layer: Layer, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_native(monkeypatch, layer)
    check(monkeypatch, layer, image)
