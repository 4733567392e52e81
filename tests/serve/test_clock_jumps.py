"""The wall clock of a server jumps, as after a suspend or a wrong time server. Nothing ends early or lives longer.

A library that the test compiles adds an offset to the wall clock of the server alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harena import BoxClosed, Limits, Sandbox, SandboxPool, SandboxSession, WarmPoolManager
from harena.errors import BudgetExceeded
from harena.ledger import budget as budgets
from harena.ledger.budget import Counts, OwnerBudget
from harena.ledger.ledger import Ledger
from harena.sessions.errors import NotFound
from harena.testing.boxserver import BoxServer, box_server
from support.leaks import settle

pytestmark = pytest.mark.thorough
HOUR = 3600
SOURCE = r"""
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


class Clock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump_to(0)

    def jump_to(self, offset_s: int) -> None:
        """Let the server's wall clock differ from ours by so much."""
        part = self._file.with_suffix(".part")
        part.write_text(f"{offset_s}\n")
        part.rename(self._file)


@pytest.fixture(scope="module")
def only_clock(tmp_path_factory: pytest.TempPathFactory) -> Clock:
    return Clock(tmp_path_factory.mktemp("clock") / "offset")


@pytest.fixture
def clock(only_clock: Clock) -> Clock:
    only_clock.jump_to(0)
    return only_clock


@pytest.fixture(scope="module")
def server(only_clock: Clock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxServer]:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("a C compiler is missing")
    folder = tmp_path_factory.mktemp("server")
    library = folder / "jump.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, "-x", "c", "-"], input=SOURCE, text=True, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("JUMP_FILE", str(only_clock._file))
        with box_server(folder, "--usage", str(folder / "usage.db")) as started:
            patch.undo()
            yield started


def open_session(server: BoxServer, **clocks: float) -> SandboxSession:
    return SandboxSession(server=server.url, token=server.token, keep_alive=True, **clocks)


def hours_ahead(session: SandboxSession) -> int:
    """How far the server's clock is ahead of ours, by the time stamps that it gives."""
    session.execute([{"name": "now", "command": ["true"]}])
    shown = datetime.fromisoformat(session.history()[-1]["startedAt"])
    return round((shown - datetime.now(UTC)).total_seconds() / HOUR)


@pytest.mark.parametrize("offset_s", [2 * HOUR, -2 * HOUR], ids=["ahead", "back"])
def test_jump_neither_ends_nor_prolongs_sessions_and_executions(server: BoxServer, clock: Clock, offset_s: int) -> None:
    with open_session(server, idle_s=HOUR, lifetime_s=HOUR) as lasting, open_session(server, lifetime_s=4) as brief:
        began = time.monotonic()
        assert hours_ahead(lasting) == 0
        with Sandbox(server.url, token=server.token) as box:
            process = box.start(["sleep", "2"], limits=Limits(wall_s=100))
            clock.jump_to(offset_s)
            assert process.wait().exit_code == 0
            assert box.exec(["sleep", "60"], limits=Limits(wall_s=0.3)).verdict.value == "time"
        assert hours_ahead(lasting) == offset_s // HOUR  # the server sees the jump

        def is_over() -> bool:
            try:
                brief.history()
            except (BoxClosed, NotFound):
                return True
            return False

        assert settle(is_over, True, within_s=60)
        assert time.monotonic() - began >= 4
        assert lasting.execute([{"name": "last", "command": ["echo", "here"]}])["status"]["stdout"] == "here\n"
        lasting.delete_sandbox()


def test_jump_leaves_pools_leases_and_rates_as_they_are(server: BoxServer, clock: Clock) -> None:
    manager = WarmPoolManager(server=server.url, token=server.token)
    manager.create_warmpool(name="clocked", replicas=1)
    manager.wait_for_warmpool_ready("clocked")
    with SandboxPool(server.url, token=server.token, warm=1) as pool:
        for offset_s in (HOUR, -HOUR, 24 * HOUR):
            clock.jump_to(offset_s)
            assert [one.stdout for one in pool.map(["print(1)"] * 8)] == [b"1\n"] * 8
            with SandboxSession(server=server.url, token=server.token, pool_ref="clocked", timeout=60) as session:
                assert hours_ahead(session) == offset_s // HOUR
    manager.delete_warmpool("clocked")


def test_budget_of_a_day_that_comes_twice_is_given_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    day = "2026-01-31"
    monkeypatch.setattr(budgets.time, "strftime", lambda *_: day)
    ledger = Ledger(tmp_path / "usage.db", budgets={"me": OwnerBudget(boxes=2, per="day")})
    account = ledger.account("me")
    account.charge(Counts(boxes=1))
    day = "2026-02-01"  # an hour too early
    account.check()
    account.charge(Counts(boxes=2))
    with pytest.raises(BudgetExceeded):
        account.check()
    day = "2026-01-31"
    with pytest.raises(BudgetExceeded):
        account.check()
    day = "2026-02-01"
    with pytest.raises(BudgetExceeded):
        account.check()
    day = "2026-02-02"
    account.check()
    ledger.close()
