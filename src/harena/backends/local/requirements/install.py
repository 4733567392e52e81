"""Installs requirements in boxes.

The first box may reach the index and nothing else. In it pip resolves the requirements, and builds what comes as
source, which runs code of the packages. Only wheels are taken out of it. The host hashes them, and a second box without
a network unpacks them, where no code of theirs runs. So a set is exactly the wheels that its lock names.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
import stat
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from harena.backends.local import variables
from harena.backends.local.launch import plan
from harena.backends.local.requirements import index as indexes
from harena.backends.local.requirements import store
from harena.errors import BoxError, BoxFileError, RequirementsFailed, Retry, SpecError, WireError
from harena.sandbox.box import Sandbox
from harena.sandbox.requirements import normalized_name
from harena.sandbox.spec import MB, WORKSPACE, Clocks, Limits, Mount, Result, Spec, Verdict

START_S = 60.0
FORMAT = 1
"""Part of every key: what an older version of this module installed is not used."""
WHEEL = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._]*)-(?P<version>[A-Za-z0-9_.!+]+)(-[0-9][A-Za-z0-9_.]*)?"
    r"-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+-[A-Za-z0-9_.]+\.whl"
)
MAX_WHEELS = 2000
MAX_SHOWN = 1500
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
PIP = """
import glob, os, runpy, sys, sysconfig
try:
    import pip
except ImportError:
    folders = [sysconfig.get_config_var("WHEEL_PKG_DIR") or ""]
    try:
        import ensurepip
        folders.append(os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"))
    except ImportError:
        pass
    wheels = [path for folder in folders if folder for path in sorted(glob.glob(os.path.join(folder, "pip-*.whl")))]
    if not wheels:
        sys.exit("this Python has no pip: neither installed nor bundled (ensurepip; Debian: python3-venv)")
    sys.path.insert(0, wheels[-1])
sys.argv[0] = "pip"
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
"""Runs the pip of the box's Python, or the one that Python bundles for new environments."""
QUIET = ("--isolated", "--no-input", "--disable-pip-version-check", "--no-color")


def hold(spec: Spec) -> store.Held:
    """Return the installed requirements of a spec, installing them first if nobody has."""
    max_mb = variables.packages_max_mb()
    index = indexes.find(max_mb)
    python = describe_python(spec)
    wanted = tuple(sorted(spec.requirements))
    text = "\n".join((str(FORMAT), python, index.name, *wanted))
    key = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def install(folder: Path) -> None:
        locked = _build(spec, wanted, index, folder, max_mb)
        store.write_note(folder, requirements=wanted, python=python, index=index.name, packages=locked)

    return store.PackageStore(variables.packages_folder()).hold(key, install)


def describe_python(spec: Spec) -> str:
    """What must be equal for two boxes to share installed packages: interpreter, ABI and platform."""
    found = plan.find_python(spec)
    if spec.python is None:
        details = [sys.version.split()[0], str(sysconfig.get_config_var("SOABI")), sysconfig.get_platform()]
    else:
        # It is not run on the host, so the file itself stands for its version and ABI.
        info = os.stat(spec.python if not os.path.isdir(spec.python) else Path(spec.python, "bin", "python3"))
        details = [str(info.st_size), str(info.st_mtime_ns), sysconfig.get_platform()]
    return " ".join([found.executable, *details, *platform.libc_ver()])


def _build(spec: Spec, wanted: Sequence[str], index: indexes.PackageIndex, folder: Path, max_mb: int) -> list[str]:
    """Install into a folder of the host. Returns exact versions."""
    common = Spec(python=spec.python, packages=_with_pip(spec), workspace_mb=max_mb, isolation="full")
    limits = Limits(
        wall_s=variables.packages_max_s(),
        memory_mb=min(1 << 20, 3 * max_mb + 2048),
        processes=512,
        output_bytes=16 * MB,
        open_files=4096,
    )
    wheels = folder / "wheels"
    with _box(dataclasses.replace(common, network=index.network, mounts=index.mounts), limits) as box:
        result = _pip(box, "wheel", "--no-cache-dir", *index.arguments, "--wheel-dir", "wheels", *wanted)
        _check(result, "resolve, download and build them", max_mb)
        _take_out(box, "wheels", wheels, max_mb)
    store.open_folders(wheels)
    locked, lines = _locked(wheels)
    store.seal(wheels)
    mount = Mount(source=str(wheels), target=indexes.WHEELS)
    with _box(dataclasses.replace(common, mounts=(mount,)), limits) as box:
        files = [f"{indexes.WHEELS}/{name}" for name in sorted(os.listdir(wheels))]
        options = ("--no-index", "--no-deps", "--no-compile", "--no-warn-script-location", "--target", "lib")
        _check(_pip(box, "install", *options, *files), "unpack them", max_mb)
        # Times of files are lost on the way out. A file that cannot be compiled is one that nobody can import.
        compile_all = ["-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "lib"]
        box.exec([plan.executable_in_box(box.spec), *compile_all], env={"PYTHONDONTWRITEBYTECODE": ""})
        _take_out(box, "lib", folder / "lib", max_mb)
    store.discard(wheels)
    (folder / "lock.txt").write_text("".join(f"{line}\n" for line in lines))
    return locked


def _with_pip(spec: Spec) -> tuple[str, ...]:
    """The pip beside Harena, for the Python that runs Harena. Other Pythons have their own."""
    if spec.python is not None:
        return ()
    try:
        plan.package_entries(("pip",))
    except SpecError:
        return ()
    return ("pip",)


def _box(spec: Spec, limits: Limits) -> Sandbox:
    return Sandbox(spec, limits=limits, clocks=Clocks(start_s=START_S))


def _pip(box: Sandbox, verb: str, *arguments: str) -> Result:
    box.exec(["mkdir", "-p", "tmp"])
    certificates = ("--cert", BUNDLE) if Path(BUNDLE).exists() else ()
    python = plan.executable_in_box(box.spec)
    # Temporary files belong to the workspace, whose size is the cap, and are moved from there without a copy.
    env = {"TMPDIR": f"{WORKSPACE}/tmp"}
    return box.exec([python, "-s", "-B", "-c", PIP, verb, *QUIET, *certificates, *arguments], env=env)


def _check(result: Result, task: str, max_mb: int) -> None:
    if result.ok:
        return
    lines = [_shown(line) for line in result.stderr.decode("utf-8", "replace").splitlines()]
    # Without a message for its user, pip ends with a traceback.
    wrong = [line for line in lines if re.match(r"ERROR: (?!Exception:)", line)] or lines[-2:]
    reason = " ".join(wrong)[-MAX_SHOWN:] or result.detail or f"it ended with {result.exit_code}"
    if result.verdict not in (Verdict.EXIT, Verdict.OK):
        reason = f"{result.detail} ({result.verdict.value})"
    if "No space left" in reason or result.verdict is Verdict.MEMORY:
        reason += f"; HARENA_PACKAGES_MAX_MB={max_mb} may be too little"
    if result.network is not None and result.network.denied:
        refused = ", ".join(sorted({_shown(denied.target)[:100] for denied in result.network.denied})[:5])
        reason += f"; the installing box was refused {refused}: if the index needs it, name it in HARENA_PACKAGE_HOSTS"
    if result.network is not None and not result.network.bytes_in:
        # No fault of the requirements, and in a match no fault of the agent.
        raise BoxError(f"requirements: the package index did not answer: {reason}", retry=Retry.SAFE)
    raise RequirementsFailed(f"requirements: pip could not {task}: {reason}")


def _take_out(box: Sandbox, path: str, target: Path, max_mb: int) -> None:
    try:
        box.download(path, target, max_bytes=max_mb * MB)
    except (BoxFileError, WireError) as error:
        raise RequirementsFailed(f"requirements: what pip left cannot be taken over: {_shown(str(error))}") from None


def _locked(folder: Path) -> tuple[list[str], list[str]]:
    """Exact versions of the wheels in a folder, and the lines of a lock with their hashes. Refuses everything else."""
    names = sorted(os.listdir(folder))
    if not names or len(names) > MAX_WHEELS:
        raise RequirementsFailed(f"requirements: they became {len(names)} wheels, not 1 to {MAX_WHEELS}")
    locked: list[str] = []
    lines: list[str] = []
    for name in names:
        found = WHEEL.fullmatch(name)
        if found is None or not stat.S_ISREG((folder / name).lstat().st_mode):
            raise RequirementsFailed(f"requirements: {ascii(name)[:200]} is not a wheel")
        with open(folder / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        locked.append(f"{normalized_name(found['name'])}=={found['version'].replace('_', '-')}")
        lines.append(f"{locked[-1]} --hash=sha256:{digest}")
    return locked, lines


def _shown(text: str) -> str:
    """Text on one line without control characters: packages may have written it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_SHOWN])
