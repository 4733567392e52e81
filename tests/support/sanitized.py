"""Builds the native part with AddressSanitizer and UndefinedBehaviorSanitizer, and runs boxes on it.

What differs from the real build: it is linked dynamically; the stacks of inits and helpers are larger, for the
sanitizers' own frames; locals are guarded by canaries (-fstack-protector-all) and bounds checks instead of ASan, whose
bookkeeping does not survive processes that share memory and end on a stack of their own; vfork is the C library's, as
ASan's own expects one stack for each thread. Reports go to descriptor 2 of the init and of the zygote, a file of the
test's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena.backends.local import backend
from harena.sandbox import backend as backends
from harena.sandbox.spec import Mount, Spec
from support import mutants
from support.layers import Edit

REPORTS = "/reports"
REPORT = re.compile(r"ERROR: AddressSanitizer|AddressSanitizer:DEADLYSIGNAL|runtime error:|stack smashing detected")
FLAGS = (
    "-O1",
    "-g",
    "-std=gnu11",
    "-w",
    "-fPIC",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined,bounds-strict",
    "-fno-sanitize-recover=all",
    "--param=asan-stack=0",
    "-fstack-protector-all",
)
OPTIONS = """
const char *__asan_default_options(void) {
  return "detect_leaks=0:exitcode=99:allocator_may_return_null=1:max_allocation_size_mb=256:handle_abort=1";
}
const char *__ubsan_default_options(void) { return "print_stacktrace=1:exitcode=99"; }
"""
VFORK = "\\1\nint __vfork(void) __attribute__((returns_twice));\n#define vfork __vfork\n"
EDITS = (
    Edit("harena.h", r"(#include <unistd\.h>)", VFORK),
    Edit("box.c", r"(?m)^(  serve\(box_control, NULL\);)", rf'  dup2(open("{REPORTS}/init", 02101, 0666), 2);\n\1'),
    Edit("job.c", r"(?<=#define STACK_BYTES )\(64 << 10\)", "(1 << 20)"),
    Edit("job.c", r"stack\[16 << 10\]", "stack[1 << 20]"),
    Edit("fork.c", r"(?<=#define HELPER_STACK )\(256 << 10\)", "(1 << 20)"),
    Edit("zygote.c", r"size = 64 << 10", "size = 1 << 20"),
)


@functools.cache
def build() -> Path:
    return mutants.build(EDITS, flags=FLAGS, static=False, more={"options.c": OPTIONS})


@functools.cache
def runtime() -> str:
    """The library that a Python must have before it loads a sanitized one."""
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    path = os.path.realpath(found.strip())
    if not os.path.isabs(path) or not os.path.exists(path):
        pytest.skip("the compiler has no AddressSanitizer (libasan)")
    return path


@contextlib.contextmanager
def boxes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spec]:
    """Boxes of this spec run on the sanitized build. Fails when a sanitizer had something to say."""
    folder = build()
    with tempfile.TemporaryDirectory(prefix="harena-sanitized-") as reports:
        os.chmod(reports, 0o777)
        monkeypatch.setenv("HARENA_LAUNCHER", "native")
        monkeypatch.setattr(backend, "NATIVE", folder)
        monkeypatch.setattr(backend, "LAUNCHER", folder / "harena-box")
        backends.load.cache_clear()  # pyright: ignore[reportPrivateUsage]
        mount = Mount(source=reports, target=REPORTS, writable=True)
        try:
            yield Spec(mounts=(mount,), env={"LD_PRELOAD": runtime(), "ASAN_OPTIONS": "detect_leaks=0"}, workspace_mb=4)
        finally:
            backends.load.cache_clear()  # pyright: ignore[reportPrivateUsage]
            said = "".join(path.read_text(errors="replace") for path in Path(reports).iterdir())
            assert not REPORT.search(said), said  # it explains what else was raised
