"""Builds the C part: `harena-box`, the launcher, and `zygote.so`, the serve loop. All else is in pyproject.toml.

A machine without a working compiler still gets an install, with a warning; HARENA_REQUIRE_NATIVE=1 makes that an error.
`python setup.py native` builds in place, when a source is newer, and needs neither pip nor setuptools.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
NATIVE = Path("src/harena/backends/local/native")
FLAGS = "-O2 -std=gnu11 -Wall -Wextra -Werror=implicit-function-declaration"
OUTPUTS = ("harena-box", "zygote.so")


class BuildFailed(Exception):
    """The reason, for whoever installs."""


def build_native(into: Path) -> None:
    inputs = [*(ROOT / NATIVE).glob("*.[ch]"), ROOT / "setup.py"]
    newest = max(path.stat().st_mtime_ns for path in inputs)
    outputs = [into / name for name in OUTPUTS]
    if all(path.exists() and path.stat().st_mtime_ns >= newest for path in outputs):
        return
    for path in outputs:  # one older than its sources would speak an older protocol
        path.unlink(missing_ok=True)
    try:
        compile_native(into)
    except BuildFailed as failure:
        for path in outputs:
            path.unlink(missing_ok=True)
        if os.environ.get("HARENA_REQUIRE_NATIVE") == "1":
            sys.exit(f"error: the native part was not built: {failure}")
        print(
            f"warning: the native part was not built: {failure}\n"
            "warning: boxes need it, or the fallback launcher: pip install 'harena[bwrap]'; `harena doctor` says which",
            file=sys.stderr,
        )


def compile_native(into: Path) -> None:
    sources = sorted((ROOT / NATIVE).glob("*.c"))
    if not sources:
        raise BuildFailed(f"no C sources in {NATIVE}")
    into.mkdir(parents=True, exist_ok=True)
    box = [path for path in sources if path.name != "zygote.c"]
    zygote = [path for path in sources if path.name != "box.c"]
    try:
        cc(box, into / "harena-box", "-static")
    except BuildFailed:  # not every distribution ships a static libc
        cc(box, into / "harena-box")
        print("note: no static libc: harena-box is linked dynamically", file=sys.stderr)
    cc(zygote, into / "zygote.so", "-fPIC", "-shared")


def cc(sources: list[Path], output: Path, *options: str) -> None:
    # Linked beside and renamed: a box that runs the old file keeps it, and no half-written one is ever found.
    part = output.with_name(f".{output.name}.{os.getpid()}")
    compiler = shlex.split(os.environ.get("CC") or "cc")
    flags = shlex.split(FLAGS) + shlex.split(os.environ.get("CFLAGS", ""))
    command = [*compiler, *flags, *options, "-o", str(part), *(str(path.relative_to(ROOT)) for path in sources)]
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildFailed(f"{shlex.join(command)} failed\n{done.stderr}")
        print(done.stderr, end="", file=sys.stderr)
        part.replace(output)
    except OSError as error:
        raise BuildFailed(f"cannot run the C compiler {compiler[0]!r}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def setup() -> None:
    import setuptools
    from setuptools.command.bdist_wheel import bdist_wheel  # pyright: ignore[reportMissingModuleSource]
    from setuptools.command.build import build

    class BuildNative(setuptools.Command):
        """Not a build_py: in an editable install setuptools turns a failing custom build_py into a warning."""

        editable_mode = False
        build_lib: str | None

        def initialize_options(self) -> None:
            self.build_lib = None

        def finalize_options(self) -> None:
            self.set_undefined_options("build", ("build_lib", "build_lib"))

        @property
        def folder(self) -> Path:
            if self.editable_mode or self.build_lib is None:
                return ROOT / NATIVE
            return ROOT / self.build_lib / NATIVE.relative_to("src")

        def run(self) -> None:
            build_native(self.folder)

        def get_outputs(self) -> list[str]:
            return [str(path) for name in OUTPUTS if (path := self.folder / name).exists()]

        def get_output_mapping(self) -> dict[str, str]:
            return {}

        def get_source_files(self) -> list[str]:
            return sorted(str(path.relative_to(ROOT)) for path in (ROOT / NATIVE).glob("*.[ch]"))

    class PlatformWheel(bdist_wheel):
        """For one platform, for any Python: nothing in it links to CPython."""

        def get_tag(self) -> tuple[str, str, str]:
            return ("py3", "none", super().get_tag()[2])

    class PlatformDistribution(setuptools.Distribution):
        def has_ext_modules(self) -> bool:
            return True

    build.sub_commands.append(("build_native", None))
    setuptools.setup(
        distclass=PlatformDistribution,
        cmdclass={"build_native": BuildNative, "bdist_wheel": PlatformWheel},
    )


if __name__ == "__main__":
    if sys.argv[1:] == ["native"]:
        build_native(ROOT / NATIVE)
    else:
        setup()
