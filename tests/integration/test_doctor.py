"""The doctor on this machine: all is held, and what is not held would be seen."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

import pytest

from harena import IsolationUnavailable, cli
from harena.cli import host
from harena.sandbox import doctor
from harena.sandbox.doctor import probes, ring, targets
from harena.sandbox.doctor.probes import Control, Probe, Trace
from harena.sandbox.spec import Verdict
from support import busy

WANTED = {
    "network": {"tcp", "udp", "abstract_sockets", "unix_sockets", "families", "programs", "interfaces", "meetings"},
    "files": {"read_host", "write_host", "symlinks", "hard_links", "read_only_mounts", "landlock"},
    "processes": {"seen", "own", "ptrace", "signals", "left_behind"},
    "privilege": {"mounts", "setuid", "devices", "mount_flags"},
    "kernel": {"proc_writes", "sys_writes", "bpf", "userfaultfd", "io_uring", "keyctl", "perf_event_open"}
    | {"user_namespaces", "code_and_log", "refused_calls", "refused_arguments"},
    "inherited": {"descriptors", "environment", "box_channel", "init"},
    "limits": {"processes", "memory", "disk", "inodes", "output", "threads", "time", "cpu", "descriptors", "rlimits"},
    "next": {"files", "environment", "modules", "memory", "shared_memory", "processes", "fork"},
    "works": {"compute", "workspace", "child", "threads", "own_loopback"},
}


@pytest.fixture(scope="module")
def report() -> doctor.Report:
    return doctor.run_doctor()


def only(monkeypatch: pytest.MonkeyPatch, *, probe: Probe | None = None, trace: Trace | None = None) -> doctor.Report:
    """A doctor with one control, and one probe or trace."""
    monkeypatch.setattr(probes, "CONTROLS", probes.CONTROLS[:1])
    monkeypatch.setattr(probes, "PROBES", (probe,) if probe else ())
    monkeypatch.setattr(probes, "TRACES", (trace,) if trace else ())
    return doctor.run_doctor()


def found(report: doctor.Report, name: str) -> probes.ProbeResult:
    return next(result for result in report.probes if result.name == name)


def test_every_probe_is_held_here(report: doctor.Report) -> None:
    assert [result for result in report.probes if not result.held] == []
    assert report.ok


def test_it_tries_all_that_it_should(report: doctor.Report) -> None:
    names = {f"{group}.{name}" for group, names in WANTED.items() for name in names}
    assert {result.name for result in report.probes} == names
    assert len(report.probes) == len(names)


def test_the_report_says_what_enforces(report: doctor.Report) -> None:
    assert report.enforcement["kernel"] == os.uname().release
    assert {"launcher", "memory", "processes", "landlock"} <= set(report.enforcement)


def test_the_report_as_json_has_the_promised_shape(report: doctor.Report) -> None:
    data = json.loads(json.dumps(report.to_json()))
    assert data["ok"] is report.ok
    assert all(set(probe) == {"name", "held", "detail"} for probe in data["probes"])


def test_the_table_has_a_line_for_each_probe_and_the_sum(report: doctor.Report) -> None:
    text = host.doctor_text(report)
    assert all(f"{'held  ' if result.held else 'FAILED'}  {result.name} " in text for result in report.probes)
    held = sum(result.held for result in report.probes)
    assert text.splitlines()[-1].startswith(f"{held} of {len(report.probes)} held")


@pytest.mark.serial
def test_it_takes_less_than_eight_seconds() -> None:
    with busy.Span() as span:
        doctor.run_doctor()
    assert span.took_s < span.limit(8)


@pytest.mark.serial  # it counts what is there on the machine
def test_it_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[targets.Host] = []

    class Seen(targets.Host):
        def __enter__(self) -> targets.Host:
            hosts.append(self)
            return super().__enter__()

    monkeypatch.setattr(doctor, "Host", Seen)
    descriptors, boxes = len(os.listdir("/proc/self/fd")), own_boxes()
    doctor.run_doctor()
    (host,) = hosts
    assert not host.folder.exists()
    assert not any(path.exists() for path in host.secrets)
    assert host.mark not in os.environ
    assert host.victim.returncode is not None
    assert own_boxes() == boxes
    assert len(os.listdir("/proc/self/fd")) == descriptors


def own_boxes() -> list[str]:
    return [box["id"] for box in host.live_boxes() if box["owner"] == os.getpid()]


# ---- a broken box would be seen ----


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('attempt("a thing allowed", os.getpid)', "a thing allowed gave"),
        ('attempt("an open door", os.stat, "/nowhere")', "not refused, only failed"),
        ('check("a sight", False)', "a sight"),
        ("pass", "denied 0"),
        ("1 / 0", "ZeroDivisionError"),
        ("print('denied 5'); sys.exit(1)", "exit code 1"),
        ("import time; time.sleep(9)", "wall_s"),
        ("os.kill(os.getpid(), 9)", "signal"),
    ],
)
def test_a_probe_that_gets_through_or_does_not_run_is_not_held(
    source: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = only(monkeypatch, probe=Probe(name="x.y", source=source, ways=(probes.MAP,), wall_s=0.5))
    assert not report.ok
    assert not found(report, "x.y").held
    assert words in found(report, "x.y").detail


@pytest.mark.parametrize("way", [probes.EXEC, probes.RUN, probes.MAP])
def test_an_escape_is_seen_on_every_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    report = only(monkeypatch, probe=Probe(name="x.y", source='attempt("this", os.getpid)', ways=(way,)))
    assert found(report, "x.y").detail.startswith(f"by {way}: ")


def test_a_limit_that_does_not_hold_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    probe = next(probe for probe in probes.PROBES if probe.name == "limits.output")
    monkeypatch.setattr(probes, "TIGHT", {**probes.TIGHT, "output_bytes": 1 << 23})
    report = only(monkeypatch, probe=probe)
    assert "4 MiB of output" in found(report, "limits.output").detail


def test_a_listener_that_was_reached_is_seen_whatever_the_guest_says(monkeypatch: pytest.MonkeyPatch) -> None:
    class Touched(targets.Host):
        def __enter__(self) -> targets.Host:
            host = super().__enter__()
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(f"\0{self.mark}.stream")
            return host

    monkeypatch.setattr(doctor, "Host", Touched)
    probe = Probe(name="x.y", source='check("", True)', ways=(probes.MAP,), target="abstract")
    result = found(only(monkeypatch, probe=probe), "x.y")
    assert (result.held, result.detail) == (False, "the host's abstract sockets heard the box")


def test_a_target_that_the_host_cannot_reach_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf(targets.Host):
        def _reach(self, name: str) -> str:
            return "" if name != "tcp" else "the host cannot reach it either"

    monkeypatch.setattr(doctor, "Host", Deaf)
    probe = next(probe for probe in probes.PROBES if probe.name == "network.tcp")
    assert not found(only(monkeypatch, probe=probe), "network.tcp").held


def test_a_changed_file_or_an_ended_process_of_the_host_is_seen() -> None:
    with targets.Host() as host:
        assert host.unreachable == {}
        held = [
            probes.ProbeResult(name=name, held=True, detail="") for name in ("files.read_host", "processes.signals")
        ]
        assert all(host.reviewed(result).held for result in held)
        host.secrets[0].write_text("changed")
        host.victim.kill()
        host.victim.wait()
        assert [host.reviewed(result).held for result in held] == [False, False]


def test_a_trace_that_the_next_program_finds_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(name="x.y", leave='print("left")', look='check("a trace", False)')
    assert "a trace" in found(only(monkeypatch, trace=trace), "x.y").detail
    trace = Trace(name="x.y", leave="pass", look='check("a trace", True)')
    assert "the control failed" in found(only(monkeypatch, trace=trace), "x.y").detail


def test_a_box_that_does_not_work_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PROBES", ())
    monkeypatch.setattr(probes, "TRACES", ())
    monkeypatch.setattr(probes, "CONTROLS", (Control(name="works.x", source="print(1)", answer="2"),))
    assert not found(doctor.run_doctor(), "works.x").held


def test_a_box_that_hangs_does_not_hold_the_doctor_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "BUDGET_S", 0)
    report = doctor.run_doctor()
    assert not any(result.held for result in report.probes)
    assert found(report, "works.compute").detail.startswith("not run")


# ---- a host that cannot isolate ----


@pytest.fixture
def locked_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise IsolationUnavailable("user namespaces are off", fix="turn them on")

    monkeypatch.setattr(doctor.backends, "load", refuse)


@pytest.mark.usefixtures("locked_down")
def test_a_host_that_cannot_isolate_is_told_what_is_missing_and_the_fix(capsys: pytest.CaptureFixture[str]) -> None:
    report = doctor.run_doctor()
    assert (report.ok, report.missing, report.fix) == (False, "user namespaces are off", "turn them on")
    assert cli.main(["doctor"]) == 3
    shown = capsys.readouterr().out
    assert "No box can be created: user namespaces are off\nFix: turn them on\n" in shown


# ---- the probes as data ----


def test_no_probe_is_endless_but_the_one_on_time() -> None:
    """On a host whose limits do not hold, the doctor must not be what brings it down."""
    endless = {probe.name for probe in probes.PROBES if "while True" in probe.source}
    assert endless == {"limits.time"}


def test_bombs_are_thrown_one_at_a_time_and_into_tight_limits() -> None:
    for probe in probes.PROBES:
        assert probe.bomb == probe.name.startswith("limits.")
        assert probe.bomb or probe.verdicts == (Verdict.OK,)


def test_no_probe_names_an_address_beyond_this_machine() -> None:
    source = Path(probes.__file__).read_text()
    assert set(re.findall(r"\d+\.\d+\.\d+\.\d+", source)) == {"127.0.0.1"}
    assert "://" not in source


def test_what_a_guest_wrote_is_shown_without_control_characters() -> None:
    assert ring.printable("a\x1b]52;c;x\x07b\nc") == "a ]52;c;x b c"
