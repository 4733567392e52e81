"""The wall clock of a server jumps, as after a suspend or a wrong time server. Nothing ends early or lives longer.

A preloaded library adds an offset to the wall clock of the server alone.
"""

from __future__ import annotations

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
from support.preloads import WallClock

pytestmark = pytest.mark.thorough
HOUR = 3600


@pytest.fixture(scope="module")
def only_clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    return WallClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
def clock(only_clock: WallClock) -> WallClock:
    only_clock.jump_to(0)
    return only_clock


@pytest.fixture(scope="module")
def server(only_clock: WallClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoxServer]:
    folder = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in only_clock.environ.items():
            patch.setenv(name, value)
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
def test_jump_neither_ends_nor_prolongs_sessions_and_executions(
    server: BoxServer, clock: WallClock, offset_s: int
) -> None:
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


def test_jump_leaves_pools_leases_and_rates_as_they_are(server: BoxServer, clock: WallClock) -> None:
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
