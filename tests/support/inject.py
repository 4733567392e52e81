"""A build of the native part in which any one call to the kernel or the allocator can be made to fail.

Every call of the C sources that can fail counts up one number, in a page that the test shares with the launcher, the
init, the zygote and what they fork; the call whose number the test has named returns an error instead of being made.
Calls whose failure cannot happen, or would undo an end (kill, wait, close), are left alone.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena.backends.local import backend
from harena.sandbox import backend as backends
from harena.sandbox.spec import Mount, Spec
from support import mutants
from support.layers import Edit

FOLDER = "/inject"
NUMBER = """
    open openat read write mount umount2 clone vfork pipe2 fcntl dup2 dup3 socket socketpair setsockopt ioctl prctl
    sendmsg send recvmsg mkdir mkdirat symlink symlinkat readlinkat fstat stat fstatat chdir setresuid setresgid
    setgroups setrlimit getrlimit sched_setaffinity sched_getaffinity sched_setscheduler sethostname memfd_create
    eventfd madvise fchmod fchmodat futimens utimensat setsid sigprocmask pread
"""
POINTER = "malloc calloc realloc opendir fdopendir getcwd"
HEADER = "\n".join(
    [
        "#include <dirent.h>",
        "#include <errno.h>",
        "#include <sys/mman.h>",
        "int inject(const char *what);",
        "#define TEXT_OF(number) #number",
        "#define TEXT(number) TEXT_OF(number)",
        '#define INJECT(what) inject(__FILE_NAME__ ":" TEXT(__LINE__) " " what)',
        *(f'#define {name}(...) (INJECT("{name}") ? -1 : {name}(__VA_ARGS__))' for name in NUMBER.split()),
        *(f'#define {name}(...) (INJECT("{name}") ? NULL : {name}(__VA_ARGS__))' for name in POINTER.split()),
        '#define mmap(...) (INJECT("mmap") ? MAP_FAILED : mmap(__VA_ARGS__))',
        "#define SPARED(number) (number == SYS_futex || number == SYS_pidfd_send_signal)",
        "#define syscall(number, ...) (!SPARED(number) && INJECT(#number) ? -1 : syscall(number, ##__VA_ARGS__))",
    ]
)
SOURCE = r"""
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static struct page {
  uint64_t count, fail_at, fired;
  int64_t number;
  char what[64], pattern[64];
} *page;
__attribute__((constructor)) static void share(void) {
  const char *path = getenv("HARENA_INJECT");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0) return;
  page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) page = NULL;
  close(fd);
}
int inject(const char *what) {
  if (!page) return 0;
  if (page->pattern[0] ? !fnmatch(page->pattern, what, 0) && !__atomic_exchange_n(&page->fired, 1, __ATOMIC_SEQ_CST) : 0)
    goto fire;
  if (__atomic_add_fetch(&page->count, 1, __ATOMIC_SEQ_CST) != __atomic_load_n(&page->fail_at, __ATOMIC_SEQ_CST)) return 0;
fire:
  strncpy(page->what, what, sizeof page->what - 1);
  page->fired = 1;
  errno = page->number;
  return 1;
}
"""
PAGE = struct.Struct("<QQQq64s64s")


class Calls:
    """The page, as the test sees it."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(4096))
        path.chmod(0o666)
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 4096)

    @property
    def count(self) -> int:
        return PAGE.unpack_from(self._page)[0]

    def fail(self, after: int, number: int) -> None:
        """The call that comes as the `after`-th from now fails."""
        struct.pack_into("<Qq64x64x", self._page, 16, 0, number)
        struct.pack_into("<Q", self._page, 8, self.count + after)

    def fail_first(self, pattern: str, number: int) -> None:
        """The first call from now on that is named like this fails: `confine.c:* prctl`."""
        struct.pack_into("<Q", self._page, 8, 0)
        struct.pack_into("<Qq64x64s", self._page, 16, 0, number, pattern.encode())

    def stop(self) -> str:
        """From now on none fails. The name of the one that did, if any."""
        struct.pack_into("<Q", self._page, 8, 0)
        _, _, fired, _, what, _ = PAGE.unpack_from(self._page)
        struct.pack_into("<64x", self._page, PAGE.size - 64)
        return what.rstrip(b"\0").decode() if fired else ""


@contextlib.contextmanager
def boxes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Spec, Calls]]:
    edit = Edit("harena.h", r"(?s)(#include <unistd\.h>)", r"\1\n#include <sys/stat.h>\n#include <sys/mount.h>")
    texts = mutants.sources()
    at_end = [
        Edit(name, r"(?m)\A((?:.*\n)*#include .*\n)", r'\1#include "inject.h"\n')
        for name in texts
        if name.endswith(".c")
    ]
    folder = mutants.build((edit, *at_end), more={"inject.h": HEADER, "shim.c": SOURCE})
    with tempfile.TemporaryDirectory(prefix="harena-inject-") as name:
        os.chmod(name, 0o777)
        calls = Calls(Path(name, "page"))
        monkeypatch.setenv("HARENA_LAUNCHER", "native")
        monkeypatch.setattr(backend, "NATIVE", folder)
        monkeypatch.setattr(backend, "LAUNCHER", folder / "harena-box")
        started = os.posix_spawn

        def spawn(path: os.PathLike[str], argv: list[str], env: dict[str, str], **options: object) -> int:
            return started(path, argv, {**env, "HARENA_INJECT": f"{name}/page"}, **options)  # pyright: ignore

        monkeypatch.setattr(os, "posix_spawn", spawn)
        backends.load.cache_clear()  # pyright: ignore[reportPrivateUsage]
        mount = Mount(source=name, target=FOLDER, writable=True)
        try:
            yield Spec(mounts=(mount,), env={"HARENA_INJECT": f"{FOLDER}/page"}, workspace_mb=4), calls
        finally:
            calls.stop()
            backends.load.cache_clear()  # pyright: ignore[reportPrivateUsage]
