"""Libraries that change what the kernel tells one process: the hour, or that its disk has become read-only. The real
thing would change the whole machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CLOCK = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset(void) {
  char text[32] = {0};
  const char *path = getenv("JUMP_FILE");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return 0;
  long found = read(fd, text, sizeof text - 1) > 0 ? atol(text) : 0;
  close(fd);
  return found;
}
int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = (int)syscall(SYS_clock_gettime, id, now);
  if (!failed && id == CLOCK_REALTIME) now->tv_sec += offset();
  return failed;
}
int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec found;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
  now->tv_sec = found.tv_sec;
  now->tv_usec = found.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *where) {
  struct timespec found;
  if (clock_gettime(CLOCK_REALTIME, &found)) return -1;
  if (where) *where = found.tv_sec;
  return found.tv_sec;
}
"""

READ_ONLY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* A kernel that has made a file system read-only after an error answers EROFS to all of these. */
static int on(void) {
  const char *flag = getenv("READ_ONLY_FLAG");
  return flag && faccessat(AT_FDCWD, flag, F_OK, 0) == 0;
}
static int below(const char *path) {
  const char *folder = getenv("READ_ONLY_FOLDER");
  return folder && path && strncmp(path, folder, strlen(folder)) == 0;
}
static int refused_path(const char *path) {
  int kept = errno, no = below(path) && on();
  errno = no ? EROFS : kept;
  return no;
}
static int refused_fd(int fd) {
  char link[64], path[PATH_MAX];
  int kept = errno, no = 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0) {
    path[length] = 0;
    no = below(path) && on();
  }
  errno = no ? EROFS : kept;
  return no;
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CHANGES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define OPENS(name)                                                     \
  int name(const char *path, int flags, ...) {                          \
    va_list more;                                                       \
    va_start(more, flags);                                              \
    mode_t mode = va_arg(more, mode_t);                                 \
    va_end(more);                                                       \
    return CHANGES(flags) && refused_path(path) ? -1 : REAL(name)(path, flags, mode); \
  }
OPENS(open)
OPENS(open64)
#define WRITES(name, offset_type)                                            \
  ssize_t name(int fd, const void *data, size_t size, offset_type offset) {  \
    return refused_fd(fd) ? -1 : REAL(name)(fd, data, size, offset);         \
  }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)
ssize_t write(int fd, const void *data, size_t size) { return refused_fd(fd) ? -1 : REAL(write)(fd, data, size); }
int ftruncate(int fd, off_t size) { return refused_fd(fd) ? -1 : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return refused_fd(fd) ? -1 : REAL(ftruncate64)(fd, size); }
int mkdir(const char *path, mode_t mode) { return refused_path(path) ? -1 : REAL(mkdir)(path, mode); }
int unlink(const char *path) { return refused_path(path) ? -1 : REAL(unlink)(path); }
int rename(const char *from, const char *to) { return refused_path(to) ? -1 : REAL(rename)(from, to); }
"""


def library(folder: Path, source: str) -> Path:
    """Compile it; LD_PRELOAD names the file."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("a C compiler is missing")
    made = folder / "preload.so"
    command = [compiler, "-shared", "-fPIC", "-o", made, "-x", "c", "-", "-ldl"]
    subprocess.run(command, input=source, text=True, check=True)
    return made


class WallClock:
    """That of a process which was started with `environ`."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "offset"
        self._library = library(folder, CLOCK)
        self.environ = {"LD_PRELOAD": str(self._library), "JUMP_FILE": str(self._file)}
        self.jump_to(0)

    def jump_to(self, offset_s: int) -> None:
        """Let the process's wall clock differ from ours by this many seconds."""
        part = self._file.with_suffix(".part")
        part.write_text(f"{offset_s}\n")
        part.rename(self._file)


class Disk:
    """The disk that a folder lies on, as a process sees it that was started with `environ`."""

    def __init__(self, scratch: Path, folder: Path) -> None:
        self._flag = scratch / "read-only"
        paths = {"READ_ONLY_FLAG": str(self._flag), "READ_ONLY_FOLDER": str(folder)}
        self.environ = {"LD_PRELOAD": str(library(scratch, READ_ONLY)), **paths}

    def make_read_only(self) -> None:
        self._flag.touch()

    def make_writable(self) -> None:
        self._flag.unlink(missing_ok=True)
