"""What a client asks and what it hears, over real gRPC and a runner of the test's own."""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from harena.match.executor.pb import executor_pb2 as pb
from harena.match.result import MatchSpec, MatchStatus, SeatStatus
from support.executor_client import FIRST_FREE, Client, FakeRunner, refusal, request, result, serving, two

Code = grpc.StatusCode


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def client(runner: FakeRunner, tmp_path: Path) -> Iterator[Client]:
    with serving(runner, tmp_path) as running, Client(running.port) as made:
        yield made
        runner.release()


# ---- requests ----


def agent(**fields: Any) -> pb.AgentData:
    return pb.AgentData(**{"agent_id": "other", **fields})


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        (two(environment=""), "environment: missing"),
        (two(environment="tictactoes"), "environment: no game 'tictactoes': did you mean tictactoe-v1"),
        (two(environment="os:system"), "environment: "),
        (two(environment="executor_client:request"), "environment: "),
        (two(environment="../../etc"), "environment: "),
        (two(environment="x" * 10_000), "environment: "),
        (request(), "agents: missing"),
        (request(FIRST_FREE), "agents: tictactoe-v1 has 2 seats; 1 agents"),
        (request(FIRST_FREE, FIRST_FREE, FIRST_FREE), "agents: tictactoe-v1 has 2 seats; 3 agents"),
        (two(match_id="x" * 300), "match_id: "),
        (two(match_id="line\nbreak"), "match_id: "),
        (two(games=1_000_000), "games: 1000000; at most 1000"),
        (two(timeout_sec=100_000), "timeout_sec: 100000; at most 3600"),
        (two(clock=pb.Clock(move_sec=-1)), "clock.move_sec: -1"),
        (two(clock=pb.Clock(bank_sec=float("nan"))), "clock.bank_sec: nan"),
        (two(clock=pb.Clock(match_sec=float("inf"))), "clock.match_sec: inf"),
        (two(config="{"), "config: not JSON"),
        (two(config="[]"), "config: expected a JSON object"),
        (two(config="NaN"), "config: not JSON"),
        (two(config="[" * 50_000), "config: not JSON"),
        (two(config=" " * 70_000), "config: 70000 characters"),
        (two(config='{"no_such_option": 1}'), "config: "),
        (request(FIRST_FREE, environment="tictactoe"), "agents: "),
    ],
)
def test_a_wrong_request_is_refused_by_field(client: Client, wrong: pb.MatchRequest, names: str) -> None:
    code, text = refusal(client.run, wrong)
    assert code is Code.INVALID_ARGUMENT
    assert text.startswith(names)


@pytest.mark.parametrize(
    ("second", "names"),
    [
        (agent(agent_id="", code_zip=b"x"), "agents[1].agent_id: missing"),
        (agent(agent_id="a" * 300, code_zip=b"x"), "agents[1].agent_id: "),
        (agent(agent_id="agent-0", code_zip=b"x"), "agents[1].agent_id: 'agent-0' is the agent_id of agents[0] too"),
        (agent(), "agents[1]: give one of code_url, code_zip and docker_image; nothing is given"),
        (agent(code_zip=b"x", code_url="https://a/b"), "agents[1]: give one of"),
        (agent(code_zip=b"x", docker_image="x"), "agents[1]: give one of"),
        (agent(code_url="https://example.org/a.zip"), "agents[1].code_url: fetching is off: list the hosts in fetch.a"),
        (agent(code_url="http://127.0.0.1/a.zip"), "agents[1].code_url: http is not allowed"),
        (agent(code_url="file:///etc/passwd"), "agents[1].code_url: files of this machine are not allowed"),
        (agent(code_url="s3://bucket/key"), "agents[1].code_url: s3 is off"),
        (agent(code_url="javascript:alert(1)"), "agents[1].code_url: cannot fetch"),
    ],
)
def test_a_wrong_agent_is_refused_by_field(client: Client, second: pb.AgentData, names: str) -> None:
    wrong = request(FIRST_FREE)
    wrong.agents.append(second)
    code, text = refusal(client.run, wrong)
    assert code is Code.INVALID_ARGUMENT
    assert text.startswith(names)


def test_validation_and_watching_refuse_in_the_same_way(client: Client) -> None:
    assert refusal(client.validate, code_zip=b"x", environment="nope")[0] is Code.INVALID_ARGUMENT
    assert refusal(client.validate, environment="tictactoe") == (Code.INVALID_ARGUMENT, "code_zip: missing")
    assert refusal(list, client.watch(pb.WatchRequest()))[0] is Code.INVALID_ARGUMENT
    assert refusal(list, client.watch(pb.WatchRequest(match=two(environment="nope"))))[0] is Code.INVALID_ARGUMENT
    assert refusal(list, client.watch(pb.WatchRequest(match_id="nope")))[0] is Code.NOT_FOUND
    assert refusal(client.cancel, "")[0] is Code.INVALID_ARGUMENT


# ---- what the runner is asked, what the client hears ----


def test_defaults_and_options_reach_the_runner(client: Client, runner: FakeRunner) -> None:
    client.run(two(match_id="m", seed=7))
    clock = pb.Clock(start_sec=1, move_sec=0.5, bank_sec=2, match_sec=9)
    client.run(two(clock=clock, timeout_sec=100, record_replay=True, config="{}"))
    first, second = (handle.spec for handle in runner.submitted)
    assert (first.environment, first.match_id, first.seed, first.record) == ("tictactoe-v1", "m", 7, False)
    assert (first.clock.start_s, first.clock.move_s, first.clock.bank_s) == (30, 5, 0)
    assert 299 < first.clock.match_s <= 300
    assert (first.memory_mb, first.processes) == (512, 50)
    assert [code.name for code in first.agents] == ["agent-0", "agent-1"]
    assert first.agents[0].files == {"agent.py": FIRST_FREE}
    assert (second.clock.start_s, second.clock.move_s, second.clock.bank_s, second.clock.match_s) == (1, 0.5, 2, 9)
    assert second.record
    assert runner.submitted[0].on_event is None


def test_a_seed_of_zero_is_a_seed_and_without_one_it_is_drawn(client: Client) -> None:
    assert client.run(two(seed=0)).seed == 0
    assert client.run(two(seed=2**64 - 1)).seed == 2**64 - 1
    assert len({client.run(two()).seed for _ in range(3)}) == 3


def test_faults_logs_and_times_are_in_the_answer(client: Client, runner: FakeRunner) -> None:
    log = "ä" * 5000 + "\udc80end"
    faults = {1: (SeatStatus.TIMEOUT, "move 3 took 6 s of 5 s")}
    runner.answer = lambda spec: result(spec, faults=faults, logs={1: log})
    answer = client.run(two())
    assert (answer.status, answer.winner_agent_id, answer.reason) == (pb.STATUS_SUCCESS, "agent-0", "three in a row")
    assert (answer.total_steps, answer.environment, answer.error_message) == (5, "tictactoe-v1", "")
    good, bad = answer.agent_results
    assert (good.agent_id, good.score, good.errors, good.status, good.error_message) == ("agent-0", 1, 0, "ok", "")
    assert (bad.score, bad.errors, bad.status, bad.error_message) == (0, 1, "timeout", "move 3 took 6 s of 5 s")
    assert (bad.cpu_sec, bad.moves, bad.start_sec) == (0.25, 3, 0.5)
    assert bad.log_tail.endswith("ä?end")
    assert len(bad.log_tail.encode()) <= 4096
    assert not bad.log
    assert len(client.run(two(include_logs=True)).agent_results[1].log) == 5004


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (MatchStatus.TIMEOUT, pb.STATUS_TIMEOUT),
        (MatchStatus.VOID, pb.STATUS_ERROR),
        (MatchStatus.CANCELLED, pb.STATUS_CANCELLED),
    ],
)
def test_without_a_result_there_is_no_winner_but_a_reason(
    client: Client, runner: FakeRunner, status: MatchStatus, expected: int
) -> None:
    runner.answer = lambda spec: result(spec, status=status, error="the reason")
    answer = client.run(two(games=4))
    assert (answer.status, answer.winner_agent_id, answer.error_message) == (expected, "", "the reason")
    assert len(runner.submitted) == 1


def test_a_runner_that_fails_is_status_error(client: Client, runner: FakeRunner) -> None:
    from harena.errors import IsolationUnavailable

    def fail(spec: MatchSpec) -> Any:
        raise IsolationUnavailable("user namespaces are off")

    runner.answer = fail
    answer = client.run(two())
    assert answer.status == pb.STATUS_ERROR
    assert "user namespaces are off" in answer.error_message


def test_a_bug_of_ours_is_internal_and_tells_nothing(client: Client, runner: FakeRunner) -> None:
    runner.answer = lambda spec: 1 / 0  # type: ignore[assignment,return-value]
    code, text = refusal(client.run, two())
    assert code is Code.INTERNAL
    assert "division" not in text
    assert client.health().active_matches == 0


def test_a_series_mirrors_seats_and_seeds_and_adds_up(client: Client, runner: FakeRunner) -> None:
    # Whoever is agent-1 wins as first, draws as second: 2 games each way.
    def play(spec: MatchSpec) -> Any:
        return result(spec, scores=(1.0, 0.0) if spec.agents[0].name == "agent-1" else (0.5, 0.5))

    runner.answer = play
    answer = client.run(two(games=4, seed=5))
    specs = [handle.spec for handle in runner.submitted]
    assert [spec.agents[0].name for spec in specs] == ["agent-0", "agent-1"] * 2
    assert specs[0].seed == specs[1].seed != specs[2].seed == specs[3].seed
    assert [found.score for found in answer.agent_results] == [1, 3]
    assert (answer.winner_agent_id, answer.total_steps, answer.seed) == ("agent-1", 20, 5)
    assert [game.winner_agent_id for game in answer.games] == ["", "agent-1"] * 2
    assert [seat.agent_id for seat in answer.games[1].seats] == ["agent-1", "agent-0"]
    again = client.run(two(games=4, seed=5))
    assert [game.seed for game in again.games] == [game.seed for game in answer.games]
    assert len(client.run(two(games=3)).games) == 3


def test_a_series_without_a_best_is_a_draw(client: Client) -> None:
    assert client.run(two(games=2)).winner_agent_id == ""  # the first seat wins, whoever sits there


def test_the_time_of_a_series_is_that_of_all_games(client: Client, runner: FakeRunner) -> None:
    pause = threading.Event()

    def slowly(spec: MatchSpec) -> Any:
        pause.wait(0.4)
        return result(spec)

    runner.answer = slowly
    answer = client.run(two(games=100, timeout_sec=1))
    assert answer.status == pb.STATUS_TIMEOUT
    assert "timeout_sec" in answer.error_message
    left_s = [handle.spec.clock.match_s for handle in runner.submitted]
    assert 1 <= len(left_s) <= 3
    assert left_s == sorted(left_s, reverse=True)
    assert left_s[0] <= 1


@pytest.mark.parametrize("code", [b"PK\x03\x04garbage", b"\x00\x01", b"  \n"])
def test_an_agent_that_cannot_be_read_forfeits_and_the_match_has_a_result(
    client: Client, runner: FakeRunner, code: bytes
) -> None:
    answer = client.run(request(FIRST_FREE, code, games=2, record_replay=True))
    assert (answer.status, answer.winner_agent_id) == (pb.STATUS_SUCCESS, "agent-0")
    assert (answer.agent_results[1].status, answer.agent_results[1].errors) == ("load", 2)
    assert answer.agent_results[1].error_message
    assert not runner.submitted


def test_a_zip_that_leads_out_of_its_folder_forfeits(client: Client) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("../../agent.py", FIRST_FREE)
    answer = client.run(request(FIRST_FREE, stream.getvalue()))
    assert answer.agent_results[1].status == "load"
    assert "leads out" in answer.agent_results[1].error_message


def test_agents_come_from_an_allowed_folder(runner: FakeRunner, tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.py").write_bytes(FIRST_FREE)
    text = f"executor: {{port: 0}}\nfetch: {{file_folder: {tmp_path / 'agents'}}}"
    with serving(runner, tmp_path, text) as running, Client(running.port) as client:
        order = request(FIRST_FREE)
        order.agents.append(agent(code_url=f"file://{tmp_path}/agents/a.py"))
        assert client.run(order).status == pb.STATUS_SUCCESS
        assert runner.submitted[0].spec.agents[1].files == {"agent.py": FIRST_FREE}
        order.agents[1].code_url = f"file://{tmp_path}/agents/missing.py"
        answer = client.run(order)
        assert (answer.status, answer.winner_agent_id) == (pb.STATUS_ERROR, "")
        assert answer.error_message.startswith("agents[1].code_url: missing.py cannot be read")
        order.agents[1].code_url = f"file://{tmp_path}/agents/../secret.py"
        assert refusal(client.run, order)[0] is Code.INVALID_ARGUMENT
