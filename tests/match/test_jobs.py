"""Matches as Jobs without a cluster: what is created, what statuses mean, what the log carries; and the orchestrator with
agents in process namespaces of their own, as containers have them.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harena.errors import SpecError
from harena.match.executor import config
from harena.match.executor.jobs import manifest
from harena.match.executor.jobs.cluster import ended_s_ago
from harena.match.executor.jobs.manifest import PodAgent
from harena.match.executor.jobs.pod_state import PodPhase, state_of
from harena.match.executor.jobs.runner import job_match
from harena.match.orchestrator import main, tools, wire
from harena.match.result import AgentCode, Clock, MatchResult, MatchSpec, MatchStatus

CODE = AgentCode(name="code", files={"agent.py": b"def act(observation):\n    return 0\n", "deep/net.bin": b"\0"})
IMAGE = AgentCode(
    name="image", files={}, entry="", command=("/agent/run", "$(HOME)"), image="registry.example/a@sha256:0"
)
SETTINGS = config.parse("{executor: {use_k8s: true}, resource_limits: {cpu_count: 2, memory_limit: 64m}}")


def planned(*agents: PodAgent, match_id: str = "m-1", caller: str = "", games: int = 1) -> manifest.JobMatch:
    spec = MatchSpec(environment="rps-v1", agents=(), match_id=match_id)
    series = tuple((tuple(range(len(agents))), 7) for _ in range(games))
    return job_match(spec, agents, series, timeout_s=60, settings=SETTINGS, caller=caller)


def pod_of(match: manifest.JobMatch) -> dict[str, Any]:
    return manifest.job("match-m-1", match, SETTINGS, "me")["spec"]["template"]["spec"]


# ---- what is created ----


def test_every_agent_has_a_container_of_its_own_and_shares_nothing_that_it_can_write_to() -> None:
    pod = pod_of(planned(PodAgent(code=CODE), PodAgent(code=IMAGE, image="registry.example/a:1"), PodAgent(code=CODE)))
    orchestrator, *agents = pod["containers"]
    assert [one["name"] for one in agents] == ["agent-0", "agent-1", "agent-2"]
    assert [one["image"] for one in agents] == [
        "rl-arena-orchestrator:latest",
        "registry.example/a:1",
        "rl-arena-orchestrator:latest",
    ]
    writable = [{mount["name"] for mount in one["volumeMounts"] if not mount.get("readOnly")} for one in agents]
    assert writable == [{"tmp-0"}, {"tmp-1"}, {"tmp-2"}]
    mounted = [{mount["name"] for mount in one["volumeMounts"]} for one in agents]
    assert mounted[0] & mounted[1] == {"tools"}
    assert "order" not in set.union(*mounted)
    assert {mount["name"] for mount in orchestrator["volumeMounts"]} == {"order", "seat-0", "seat-1", "seat-2"}
    users = [one["securityContext"]["runAsUser"] for one in pod["containers"]]
    assert len(set(users)) == 4


def test_the_pod_has_no_token_no_shared_processes_and_no_privileges() -> None:
    pod = pod_of(planned(PodAgent(code=CODE), PodAgent(code=CODE)))
    assert pod["automountServiceAccountToken"] is False
    assert pod["shareProcessNamespace"] is False
    assert pod["hostNetwork"] is False
    assert not {"hostPID", "hostIPC"} & set(pod)
    assert pod["restartPolicy"] == "Never"
    for one in [*pod["initContainers"], *pod["containers"]]:
        security = one["securityContext"]
        assert security["runAsNonRoot"]
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert set(one["resources"]["limits"]) == {"cpu", "memory"}
    limits = pod["containers"][1]["resources"]["limits"]
    assert limits == {"cpu": "2000m", "memory": "64Mi"}


def test_what_an_agent_writes_counts_as_its_own_memory_so_that_it_cannot_have_the_pod_evicted() -> None:
    pod = pod_of(planned(PodAgent(code=CODE), PodAgent(code=CODE)))
    scratch = [volume for volume in pod["volumes"] if volume["name"].startswith("tmp-")]
    assert [volume["emptyDir"] for volume in scratch] == [{"medium": "Memory"}] * 2


def test_code_goes_to_its_own_container_and_the_order_without_it_to_the_orchestrator() -> None:
    match = planned(PodAgent(code=CODE), PodAgent(code=dataclasses.replace(CODE, name="other")))
    data = manifest.secret_data(match)
    assert set(data) == {"order", "agent-0.0", "agent-0.1", "agent-1.0", "agent-1.1"}
    volumes = {volume["name"]: volume for volume in pod_of(match)["volumes"]}
    items = volumes["agent-1"]["secret"]["items"]
    assert items == [{"key": "agent-1.0", "path": "agent.py"}, {"key": "agent-1.1", "path": "deep/net.bin"}]
    assert all(not agent.files for agent in match.order.agents)
    assert volumes["order"]["secret"]["items"] == [{"key": "order", "path": "order"}]


def test_more_code_than_a_secret_holds_is_refused_with_the_way_out() -> None:
    large = dataclasses.replace(CODE, files={"agent.py": b"#" * 1_000_000})
    with pytest.raises(SpecError, match="build images"):
        manifest.secret_data(planned(PodAgent(code=large)))


def test_kubernetes_expands_no_variable_in_an_agents_command() -> None:
    pod = pod_of(planned(PodAgent(code=IMAGE, image="registry.example/a:1")))
    assert pod["containers"][1]["command"][-2:] == ["/agent/run", "$$(HOME)"]
    script = pod_of(planned(PodAgent(code=CODE)))["containers"][1]["command"]
    assert not any("$(" in word.replace("$$", "") for word in script)


@given(st.text(max_size=300), st.sampled_from(["", "ann", "bob"]))
def test_a_job_has_a_valid_name_whatever_the_match_is_called(match_id: str, caller: str) -> None:
    for attempt in (0, 2):
        name = manifest.job_name(match_id, caller, attempt)
        assert re.fullmatch(r"match-[a-z0-9]([a-z0-9-]*[a-z0-9])?", name), name
        assert len(name) <= 58  # with a suffix it still fits a label


def test_the_names_of_different_matches_differ() -> None:
    assert manifest.job_name("m-1") == "match-m-1"
    names = {manifest.job_name(*of) for of in (("a b",), ("a-b",), ("a_b",), ("A-b",), ("a-b", "ann"), ("a-b", "bob"))}
    assert len(names) == 6


# ---- what a status means ----


def status(**parts: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": parts}


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"name": name, "state": state}


@pytest.mark.parametrize(
    ("pod", "phase", "says"),
    [
        (status(phase="Pending"), PodPhase.WAITING, ""),
        (
            status(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: cpu"}]),
            PodPhase.WAITING,
            "no node has room",
        ),
        (status(containerStatuses=[container("orchestrator", running={})]), PodPhase.RUNNING, ""),
        (status(containerStatuses=[container("orchestrator", terminated={"exitCode": 0})]), PodPhase.ENDED, ""),
        (
            status(containerStatuses=[container("orchestrator", terminated={"exitCode": 137, "reason": "OOMKilled"})]),
            PodPhase.LOST,
            "OOMKilled",
        ),
        (
            status(
                containerStatuses=[container("agent-1", waiting={"reason": "ImagePullBackOff", "message": "no x:1"})]
            ),
            PodPhase.BROKEN,
            "image of agent-1 cannot be pulled: no x:1",
        ),
        (
            status(containerStatuses=[container("agent-1", waiting={"reason": "CreateContainerError"})]),
            PodPhase.BROKEN,
            "agent-1 cannot be started",
        ),
        (status(phase="Failed", reason="Evicted", message="low on memory"), PodPhase.LOST, "Evicted: low on memory"),
        (status(phase="Unknown"), PodPhase.LOST, "node"),
        (status(phase="Failed", reason="DeadlineExceeded"), PodPhase.BROKEN, "deadline"),
        ({"metadata": {"deletionTimestamp": "now"}, "status": {}}, PodPhase.LOST, "deleted"),
        (
            status(initContainerStatuses=[container("tools", terminated={"exitCode": 1})]),
            PodPhase.BROKEN,
            "tools ended with code 1",
        ),
        # An agent that ends its own container changes nothing: the game deals with it.
        (
            status(
                containerStatuses=[
                    container("orchestrator", running={}),
                    container("agent-0", terminated={"exitCode": 137, "reason": "OOMKilled"}),
                ]
            ),
            PodPhase.RUNNING,
            "",
        ),
        (
            status(phase="Failed", containerStatuses=[container("orchestrator", terminated={"exitCode": 0})]),
            PodPhase.ENDED,
            "",
        ),
    ],
)
def test_the_status_of_a_pod_is_read(pod: dict[str, Any], phase: PodPhase, says: str) -> None:
    found = state_of(pod)
    assert found.phase is phase
    assert says in found.text


def test_a_job_is_as_old_as_its_end() -> None:
    done = {"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert ended_s_ago({"status": {"conditions": [done]}}, 1767225660.0) == 60
    assert ended_s_ago({"status": {"active": 1}}, 0.0) < 0


# ---- what the log carries ----


def over(game: int, text: str = "") -> wire.GameOver:
    result = MatchResult(
        match_id="m",
        environment="rps-v1",
        seed=1,
        status=MatchStatus.FINISHED,
        winner=None,
        reason=text,
        steps=1,
        wall_s=0.1,
        seats=(),
        replay=os.urandom(30_000),
    )
    return wire.GameOver(game, result)


def test_reports_survive_a_log_with_other_lines_and_a_second_reading() -> None:
    sent: list[wire.JobReport] = [wire.Began(), over(0), wire.Stepped(1, {"type": "step"}), over(1), wire.SeriesOver()]
    lines = [line for number, report in enumerate(sent) for line in wire.report_lines("nonce", number, report)]
    assert len(lines) > len(sent)
    assert all(len(line) < 16 << 10 for line in lines)
    noisy = [text for line in lines for text in ("Traceback", "other 0 . AAAA", line, "nonce 99 . AAAA")]
    reader = wire.ReportReader("nonce")
    cut = len(noisy) // 2
    first = [found for line in noisy[:cut] if (found := reader.feed(line)) is not None]
    reader.restart()
    second = [found for line in noisy if (found := reader.feed(line)) is not None]
    assert first + second == sent


@pytest.mark.parametrize("line", ["nonce 0 . ?", "nonce 0 . AAAA", "nonce 0 . " + "A" * 12])
def test_a_report_that_cannot_be_read_is_no_result(line: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        wire.ReportReader("nonce").feed(line)


def test_a_line_without_the_nonce_is_no_report() -> None:
    (line,) = wire.report_lines("guess", 0, wire.SeriesOver())
    assert wire.ReportReader("nonce").feed(line) is None


# ---- the orchestrator, with agents in process namespaces ----

ISOLATED = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
PLAYER = """
import json, sys
print("hello from an agent", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "init": print('{"ready": true}', flush=True)
    if message["type"] == "act": print('{"action": 0}', flush=True)
    if message["type"] == "end": break
"""


class Pod:
    """An orchestrator in a thread, and agents as first processes of process namespaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports: list[wire.JobReport] = []
        self.logs: list[str] = []

    def play(self, *programs: str, games: int = 1, **fields: Any) -> list[MatchResult]:
        count = len(programs)
        for number in range(count):
            (self.folder / "seats" / str(number)).mkdir(parents=True)
            (self.folder / f"tmp-{number}").mkdir()
        agents = tuple(AgentCode(name=f"a{at}", files={}, command=("x",)) for at in range(count))
        clock = fields.pop("clock", Clock(move_s=10))
        order = wire.JobOrder(
            nonce="n",
            spec=MatchSpec(environment="rps-v1", agents=(), clock=clock, config={"rounds": 5}),
            agents=agents,
            games=tuple(wire.PlannedGame(tuple(range(count)), seed) for seed in range(games)),
            timeout_s=100.0,
            start_s=60.0,
        )
        reading, writing = os.pipe()
        seats = [self._seat(number, program) for number, program in enumerate(programs)]
        player = threading.Thread(target=self._orchestrate, args=(order, writing))
        player.start()
        reader = wire.ReportReader("n")
        with open(reading) as lines:
            for line in lines:
                if (found := reader.feed(line.rstrip("\n"))) is not None:
                    self.reports.append(found)
        player.join(60)
        for seat in seats:
            self.logs.append(seat.communicate(timeout=60)[1])
            assert seat.returncode == 0
        return [report.result for report in self.reports if isinstance(report, wire.GameOver)]

    def _orchestrate(self, order: wire.JobOrder, out: int) -> None:
        try:
            main.play_series(order, self.folder / "seats", main.Reporter("n", out))
        finally:
            os.close(out)

    def _seat(self, number: int, program: str) -> subprocess.Popen[str]:
        socket = self.folder / "seats" / str(number) / wire.SEAT_SOCKET
        limits = [str(self.folder / f"tmp-{number}"), "50", "1000"]
        command = [*ISOLATED, str(tools.PROGRAM), str(socket), *limits, "--", "python3", "-c", program]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "SCRATCH": limits[0]})


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    if not tools.PROGRAM.exists():
        pytest.skip("host: harena-seat was not built: no static libc")
    if subprocess.run([*ISOLATED, "true"], capture_output=True).returncode:
        pytest.skip("host: no user and process namespaces")
    return Pod(tmp_path)


def statuses(results: list[MatchResult]) -> list[list[str]]:
    return [[seat.status.value for seat in result.seats] for result in results]


def test_a_series_is_played_with_a_new_process_for_each_game(pod: Pod) -> None:
    counts = PLAYER.replace('"hello from an agent"', "f\"pid {__import__('os').getpid()}\"")
    results = pod.play(counts, PLAYER, games=3)
    assert statuses(results) == [["ok", "ok"]] * 3
    assert isinstance(pod.reports[0], wire.Began)
    assert pod.reports[-1] == wire.SeriesOver()
    assert len(set(pod.logs[0].split())) == 4  # "pid", and three numbers
    assert pod.logs[1] == "hello from an agent\n" * 3


def test_nothing_that_an_agent_wrote_is_there_in_its_next_game(pod: Pod) -> None:
    writes = (
        "import os, pathlib\nfolder = pathlib.Path(os.environ['SCRATCH'])\n"
        "print(len(list(folder.iterdir())), file=__import__('sys').stderr)\n"
        "(folder / 'deep' / 'er').mkdir(parents=True)\n(folder / 'deep' / 'er' / 'notes').write_text('x')\n"
        "(folder / 'deep').chmod(0)\n(folder / 'link').symlink_to('/etc')\n" + PLAYER
    )
    assert statuses(pod.play(writes, PLAYER, games=2)) == [["ok", "ok"]] * 2
    assert [line for line in pod.logs[0].splitlines() if line.isdigit()] == ["0", "0"]
    assert Path("/etc").is_dir()


def test_processes_that_an_agent_leaves_are_ended_with_its_game(pod: Pod, tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    leaves = (
        f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n"
        f"        open({str(mark)!r}, 'a').write('x')\n        time.sleep(0.01)\n" + PLAYER
    )
    assert statuses(pod.play(leaves, PLAYER)) == [["ok", "ok"]]
    size = mark.stat().st_size
    time.sleep(0.2)
    assert mark.stat().st_size == size


@pytest.mark.parametrize(
    ("program", "verdict", "says"),
    [
        ("import sys\nsys.exit(3)", "crash", "exit code 3"),
        ("import os\nos.kill(os.getpid(), 9)", "crash", "signal 9"),
        ("print('not JSON', flush=True)\nimport time\ntime.sleep(60)", "protocol", "not JSON"),
        ("print('{\"ready\": true}', flush=True)\nimport time\ntime.sleep(60)", "timeout", "a move took"),
        ("print('x' * (2 << 20), flush=True)\nimport time\ntime.sleep(60)", "protocol", "a line of more than"),
        (PLAYER.replace('"action": 0', '"action": 99'), "illegal", "99"),
        ("import sys\nsys.stderr.write('x' * (8 << 20))\n" + PLAYER, "ok", ""),
    ],
)
def test_an_agent_that_misbehaves_forfeits_and_the_other_wins(pod: Pod, program: str, verdict: str, says: str) -> None:
    (result,) = pod.play(program, PLAYER, clock=Clock(move_s=0.5, start_s=30))
    assert result.status is MatchStatus.FINISHED
    assert (result.seats[0].status.value, result.seats[1].status.value) == (verdict, "ok")
    assert says in result.seats[0].reason
    if verdict != "ok":
        assert result.winner == 1
    assert len(pod.logs[0]) <= 1100


def test_the_clock_of_an_agent_stands_still_while_others_move(pod: Pod) -> None:
    slow = PLAYER.replace(
        'if message["type"] == "act":', 'if message["type"] == "act": __import__(\'time\').sleep(0.4);'
    )
    (result,) = pod.play(slow, PLAYER)
    assert [seat.status.value for seat in result.seats] == ["ok", "ok"]
    assert result.seats[0].cpu_s >= 2.0
    assert result.seats[1].cpu_s < result.seats[0].cpu_s


def test_a_command_that_does_not_exist_is_a_fault_of_its_agent(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    seat = Pod._seat

    def missing(self: Pod, number: int, program: str) -> subprocess.Popen[str]:
        if number:
            return seat(self, number, program)
        socket = self.folder / "seats" / "0" / wire.SEAT_SOCKET
        command = [*ISOLATED, str(tools.PROGRAM), str(socket), str(self.folder / "tmp-0"), "50", "100", "--", "/none"]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    monkeypatch.setattr(Pod, "_seat", missing)
    (result,) = pod.play("", PLAYER)
    assert [seat.status.value for seat in result.seats] == ["load", "ok"]
    assert "No such file" in result.seats[0].reason


def test_the_seat_refuses_to_run_where_it_could_kill_strangers(tmp_path: Path) -> None:
    if not tools.PROGRAM.exists():
        pytest.skip("host: harena-seat was not built: no static libc")
    words = [tools.PROGRAM, tmp_path / "socket", tmp_path, "50", "100", "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "first process of a container" in done.stderr
