"""Builds the C part: `harena-box`, the launcher, `zygote.so`, the serve loop, `harena-seat`, the first process of an
agent's container in a match Job, and the kernels of `harena azr` for a processor, once for each kind of it. All else is
in pyproject.toml.

A machine without a working compiler still gets an install, with a warning; HARENA_REQUIRE_NATIVE=1 makes that an error.
`python setup.py native` builds in place, when a source is newer, and needs neither pip nor setuptools.

CC compiles everything; HARENA_STATIC_CC and HARENA_SHARED_CC, where set, compile static programs and zygote.so. With
_PYTHON_HOST_PLATFORM=linux-aarch64, as in any cross build, all of it is for that machine. deploy/release/packages.py
sets these.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent
FLAGS = "-O2 -std=gnu11 -Wall -Wextra -Werror=implicit-function-declaration"
KERNEL_FLAGS = "-O3 -fno-math-errno -fno-trapping-math -fPIC -shared"
X86 = {"avx2": "-march=x86-64-v3", "avx512": "-march=x86-64-v4 -mprefer-vector-width=512"}
PROCESSORS = {"plain": "", **(X86 if sysconfig.get_platform() == "linux-x86_64" else {})}
STATIC, SHARED = "HARENA_STATIC_CC", "HARENA_SHARED_CC"


class BuildFailed(Exception):
    """The reason, for whoever installs."""


@dataclass(frozen=True)
class Part:
    folder: Path
    outputs: tuple[str, ...]
    compile: Callable[[list[Path], Path], None]
    without: str
    """What it means when it is missing."""

    def sources(self) -> list[Path]:
        return sorted((ROOT / self.folder).glob("*.[ch]"))


def build_native(part: Part, into: Path) -> None:
    newest = max(path.stat().st_mtime_ns for path in [*part.sources(), ROOT / "setup.py"])
    outputs = [into / name for name in part.outputs]
    if all(path.exists() and path.stat().st_mtime_ns >= newest for path in outputs):
        return
    for path in outputs:  # one older than its sources would speak an older protocol
        path.unlink(missing_ok=True)
    try:
        sources = [path for path in part.sources() if path.suffix == ".c"]
        if not sources:
            raise BuildFailed(f"no C sources in {part.folder}")
        into.mkdir(parents=True, exist_ok=True)
        part.compile(sources, into)
    except BuildFailed as failure:
        for path in outputs:
            path.unlink(missing_ok=True)
        if os.environ.get("HARENA_REQUIRE_NATIVE") == "1":
            sys.exit(f"error: the native part was not built: {failure}")
        print(
            f"warning: the native part was not built: {failure}\nwarning: {part.without}",
            file=sys.stderr,
        )


def compile_boxes(sources: list[Path], into: Path) -> None:
    box = [path for path in sources if path.name != "zygote.c"]
    zygote = [path for path in sources if path.name != "box.c"]
    try:
        cc(box, into / "harena-box", "-static", compiler=STATIC)
    except BuildFailed:  # not every distribution ships a static libc
        cc(box, into / "harena-box")
        print("note: no static libc: harena-box is linked dynamically", file=sys.stderr)
    cc(zygote, into / "zygote.so", "-fPIC", "-shared", compiler=SHARED)


def compile_seat(sources: list[Path], into: Path) -> None:
    cc(sources, into / "harena-seat", "-static", compiler=STATIC)  # it runs in images of any content


def compile_kernels(sources: list[Path], into: Path) -> None:
    for name, flags in PROCESSORS.items():
        options = shlex.split(f"{KERNEL_FLAGS} {flags}")
        try:
            cc(sources, into / f"kernels-{name}.so", *options, "-fopenmp", libraries=("-lm",))
        except BuildFailed:  # not every compiler comes with OpenMP
            cc(
                sources,
                into / f"kernels-{name}.so",
                *options,
                "-Wno-unknown-pragmas",
                "-Wno-unused-parameter",
                libraries=("-lm",),
            )
            print(f"note: no OpenMP: kernels-{name}.so runs in one thread", file=sys.stderr)


PARTS = (
    Part(
        folder=Path("src/harena/backends/local/native"),
        outputs=("harena-box", "zygote.so"),
        compile=compile_boxes,
        without="boxes need it, or the fallback launcher: pip install 'harena[bwrap]'; `harena doctor` says which",
    ),
    Part(
        folder=Path("src/harena/match/orchestrator/native"),
        outputs=("harena-seat",),
        compile=compile_seat,
        without="an orchestrator image for matches as Kubernetes Jobs needs it",
    ),
    Part(
        folder=Path("src/harena/azr/native"),
        outputs=tuple(f"kernels-{name}.so" for name in PROCESSORS),
        compile=compile_kernels,
        without="`harena azr` is slower on processors without it",
    ),
)


def cc(sources: list[Path], output: Path, *options: str, libraries: tuple[str, ...] = (), compiler: str = "CC") -> None:
    """Compile and link with the command in the variable `compiler`, else with CC."""
    # Linked beside and renamed: a box that runs the old file keeps it, and no half-written one is ever found.
    part = output.with_name(f".{output.name}.{os.getpid()}")
    program = shlex.split(os.environ.get(compiler) or os.environ.get("CC") or "cc")
    flags = shlex.split(FLAGS) + shlex.split(os.environ.get("CFLAGS", ""))
    inputs = [str(path.relative_to(ROOT)) for path in sources]
    command = [*program, *flags, *options, "-o", str(part), *inputs, *libraries]
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise BuildFailed(f"{shlex.join(command)} failed\n{done.stderr}")
        print(done.stderr, end="", file=sys.stderr)
        part.replace(output)
    except OSError as error:
        raise BuildFailed(f"cannot run the C compiler {program[0]!r}: {error.strerror}") from error
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

        def folder(self, part: Part) -> Path:
            if self.editable_mode or self.build_lib is None:
                return ROOT / part.folder
            return ROOT / self.build_lib / part.folder.relative_to("src")

        def run(self) -> None:
            for part in PARTS:
                build_native(part, self.folder(part))

        def get_outputs(self) -> list[str]:
            paths = [self.folder(part) / name for part in PARTS for name in part.outputs]
            return [str(path) for path in paths if path.exists()]

        def get_output_mapping(self) -> dict[str, str]:
            return {}

        def get_source_files(self) -> list[str]:
            return [str(path.relative_to(ROOT)) for part in PARTS for path in part.sources()]

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
        for part in PARTS:
            build_native(part, ROOT / part.folder)
    else:
        setup()
