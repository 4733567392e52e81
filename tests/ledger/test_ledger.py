"""The ledger adds up what was used, keeps it, and refuses an owner that has used up its budget."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harena import Limits, Result, Sandbox, SandboxPool, SpecError, cli
from harena.errors import BudgetExceeded
from harena.ledger import budget as budgets
from harena.ledger import ledger as ledgers
from harena.ledger.budget import Counts, OwnerBudget, parse_budget
from harena.ledger.ledger import OTHER, Ledger
from harena.sandbox.border.accounting import AccountObserver

Capture = pytest.CaptureFixture[str]


def test_usage_is_added_up_by_what_was_asked_for() -> None:
    ledger = Ledger()
    for run, agent in (("r1", "a"), ("r1", "b"), ("r2", "a")):
        account = ledger.account("me", run=run, agent=agent)
        for _ in range(3):
            account.charge(Counts(cpu_s=1.5, boxes=1))
    ledger.account("you").charge(Counts(cpu_s=100.0))
    assert [(row["run"], row["cpu_s"]) for row in ledger.usage(owner="me", by=("run",))] == [("r1", 9.0), ("r2", 4.5)]
    assert [row["boxes"] for row in ledger.usage(owner="me", by=())] == [9]
    assert [row["owner"] for row in ledger.usage(by=("owner",))] == ["me", "you"]
    assert ledger.usage(owner="nobody", by=()) == []
    with pytest.raises(SpecError):
        ledger.usage(by=("day; DROP TABLE usage",))
    ledger.close()


def test_threads_lose_no_charge(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "usage.db")
    account = ledger.account("me")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: account.charge(Counts(executions=1)), range(2000)))
    ledger.close()
    again = Ledger(tmp_path / "usage.db")
    assert again.usage(by=())[0]["executions"] == 2000
    again.close()


def test_labels_of_a_client_take_a_bounded_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MAX_GROUPS", 10)
    ledger = Ledger()
    for number in range(50):
        ledger.account("flood", run=f"run-{number}").charge(Counts(executions=1))
    ledger.account("other", run="mine").charge(Counts(executions=1))
    rows = ledger.usage(owner="flood", by=("run",))
    assert len(rows) == 11
    assert next(row for row in rows if row["run"] == OTHER)["executions"] == 40
    assert [row["run"] for row in ledger.usage(owner="other", by=("run",))] == ["mine"]
    ledger.close()


@pytest.mark.parametrize("label", ["a b", "x" * 101, "\n", "\x1b[2J", OTHER, "é", "'; --"])
def test_labels_are_plain(label: str) -> None:
    with pytest.raises(SpecError):
        Ledger().account("me", run=label)
    assert budgets.LABEL.fullmatch(budgets.as_label(label))


@pytest.mark.parametrize(
    ("budget", "used"),
    [
        (OwnerBudget(cpu_s=2.0), Counts(cpu_s=2.0)),
        (OwnerBudget(gib_s=2.0), Counts(gib_s=2.5)),
        (OwnerBudget(bytes=100), Counts(bytes_in=60, bytes_out=40)),
        (OwnerBudget(boxes=0), Counts()),
    ],
)
def test_spent_budget_is_refused_by_name(budget: OwnerBudget, used: Counts) -> None:
    ledger = Ledger(budgets={"me": budget})
    account = ledger.account("me")
    account.charge(used)
    with pytest.raises(BudgetExceeded, match="the budget of me is used up"):
        account.check()
    ledger.account("you").check()
    ledger.close()


def test_program_of_a_batch_that_is_given_up_is_charged_for_its_memory() -> None:
    ledger = Ledger()

    def give_up(index: int, result: Result) -> None:
        raise KeyError(index)

    with SandboxPool(warm=1, max_live=1, limits=Limits(memory_mb=1024)) as pool:
        programs = ["import time; time.sleep(0.5)", "while True: pass", "while True: pass"]
        with pytest.raises(KeyError):
            pool.run_each(programs, give_up, observe=lambda: AccountObserver(ledger.account("me")))
    [row] = ledger.usage(by=())
    assert row["executions"] == 1
    assert row["gib_s"] > 1.2  # three at once for half a second
    ledger.close()


def test_budget_of_a_day_begins_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    day = ["2026-01-31"]
    monkeypatch.setattr(budgets, "today", lambda: day[0])
    monkeypatch.setattr(ledgers, "today", lambda: day[0])
    ledger = Ledger(
        tmp_path / "a.db", budgets={"*": OwnerBudget(boxes=1, per="day"), "m": OwnerBudget(boxes=2, per="month")}
    )
    daily, monthly = ledger.account("d"), ledger.account("m")
    for account in (daily, monthly):
        account.check()
        account.charge(Counts(boxes=1))
    with pytest.raises(BudgetExceeded):
        daily.check()
    monthly.charge(Counts(boxes=1))
    day[0] = "2026-02-01"
    for account in (daily, monthly):
        account.check()
    ledger.close()


@pytest.mark.parametrize(
    "text", ["", "me", "me:", ":cpu_s=1", "me:cpu_s=x", "me:cpu_s=-1", "me:cpu_s=nan", "me:disk=1", "me:per=day"]
)
def test_wrong_budget_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_budget(text)


def test_budget_is_read() -> None:
    assert parse_budget("a.b:cpu_s=60,bytes=1e9,per=day") == ("a.b", OwnerBudget(cpu_s=60, bytes=1e9, per="day"))


def test_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    (tmp_path / "link").symlink_to(tmp_path / "b")
    with sqlite3.connect(tmp_path / "new") as db:
        db.execute("PRAGMA user_version = 99")
    for name in ("a", "link", "new", "missing/folder"):
        with pytest.raises(SpecError):
            Ledger(tmp_path / name)
    for name in ("a", "new", "missing"):
        with pytest.raises(SpecError):
            Ledger.open_to_read(tmp_path / name)


def test_box_is_charged_and_refused_before_it_runs() -> None:
    ledger = Ledger(budgets={"me": OwnerBudget(bytes=1000)})
    with Sandbox(limits=Limits(memory_mb=512)) as box:
        box.observe(AccountObserver(ledger.account("me", run="r")))
        box.exec(["sh", "-c", "cat; kill $$"], stdin=b"x" * 100)
        [fork] = box.fork()
        with fork:
            fork.run("print('y' * 1000)")
        for refused in (lambda: box.exec(["touch", "ran"]), lambda: box.write("ran", b""), box.fork, box.shell):
            with pytest.raises(BudgetExceeded):
                refused()
    [row] = ledger.usage(by=("owner", "run"))
    assert (row["owner"], row["run"], row["boxes"], row["executions"], row["faults"]) == ("me", "r", 2, 2, 0)
    assert row["bytes_in"] >= 100
    assert row["bytes_out"] == 100 + 1001
    assert row["box_s"] > 0
    assert ledger.stats("me")["verdicts"] == {"ok": 1, "signal": 1}
    assert set(ledger.stats("me")["latency_ms"]) == {"p50", "p95", "p99"}
    ledger.close()


def test_command_reads_the_file_while_it_is_written(tmp_path: Path, capsys: Capture) -> None:
    ledger = Ledger(tmp_path / "usage.db")
    ledger.account("me", run="r").charge(Counts(cpu_s=2.0))
    ledger.flush()
    assert cli.main(["usage", str(tmp_path / "usage.db"), "--by", "owner,run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["owner", "run", "cpu_s"]
    assert lines[1].split()[:3] == ["me", "r", "2.00"]
    ledger.close()
    assert cli.main(["usage", str(tmp_path / "usage.db"), "--since", "2999-01-01"]) == 0
    assert capsys.readouterr().out == "nothing was used\n"
    for wrong in (["--since", "soon"], ["--by", "colour"]):
        assert cli.main(["usage", str(tmp_path / "usage.db"), *wrong]) == 2


def test_command_without_a_file_or_a_server_says_what_to_give() -> None:
    env = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-m", "harena", "usage"], capture_output=True, text=True, check=False, env=env
    )
    assert (done.returncode, "--server URL" in done.stderr) == (2, True)
