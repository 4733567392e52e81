"""The engine for OpenAI-compatible servers, against a small server on loopback."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from harena.azr import environment
from harena.azr.engines import openai_engine
from harena.azr.engines.openai_engine import LearningRefused, OpenAIEngine, ServerError, ServerSettings
from harena.azr.engines.protocol import Completion, CompletionRequest, Sampling, Update
from harena.errors import SpecError

Answer = tuple[int, Any]


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.answer: Callable[[dict[str, Any], int], Answer] = lambda body, _: (200, completions(body))

    def handle_error(self, request: object, client_address: object) -> None:
        del request, client_address  # a client that has given up

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, body, dict(self.headers)))
        status, data = self.server.answer(body, len(self.server.seen))
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def completions(body: dict[str, Any]) -> dict[str, Any]:
    logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -1.0]}
    return {
        "choices": [
            {
                "index": n,
                "text": f"{body['prompt']}#{n}",
                "finish_reason": "stop",
                "logprobs": logprobs,
                "token_ids": [1, 2],
                "prompt_token_ids": [7],
            }
            for n in range(body["n"])
        ]
    }


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        yield served
        served.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_engine, "PAUSE_S", 0.0)
    monkeypatch.delenv(environment.KEY_VARIABLE, raising=False)


def engine(server: Server, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(ServerSettings(url=server.url, model="m", **settings), key="")


def request(prompt: str, n: int = 1) -> CompletionRequest:
    return CompletionRequest(prompt=prompt, n=n, max_new=16)


def test_completions_come_in_the_order_of_the_requests(server: Server) -> None:
    done: list[int] = []
    prompts = [f"p{number}" for number in range(20)]
    answers = engine(server).generate(
        [request(prompt, 2) for prompt in prompts], Sampling(seed=1), lambda index, _: done.append(index)
    )
    assert [[one.text for one in group] for group in answers] == [[f"{p}#0", f"{p}#1"] for p in prompts]
    assert sorted(done) == list(range(20))


def test_logprobs_and_token_ids_are_taken_where_given(server: Server) -> None:
    ((one,),) = engine(server, token_ids=True, logprobs=True).generate([request("p")], Sampling(seed=1))
    assert one == Completion(prompt_ids=(7,), ids=(1, 2), logprobs=(-0.5, -1.0), text="p#0", finished=True)
    assert server.seen[0][1]["return_token_ids"] is True


def test_sampling_reaches_the_server(server: Server) -> None:
    own = engine(server)
    own.generate([request("p")], Sampling(seed=5, temperature=0.7, top_p=0.9, stop=("\n\n",)))
    own.generate([request("p")], Sampling(seed=5, temperature=0.7, greedy=True))
    sampled, greedy = (body for _, body, _ in server.seen)
    assert (sampled["temperature"], sampled["top_p"], sampled["stop"]) == (0.7, 0.9, ["\n\n"])
    assert (greedy["temperature"], greedy["max_tokens"], greedy["model"]) == (0.0, 16, "m")
    assert sampled["seed"] == greedy["seed"]


def test_requests_of_one_call_are_sampled_with_seeds_of_their_own(server: Server) -> None:
    engine(server).generate([request("same"), request("same")], Sampling(seed=5))
    assert len({body["seed"] for _, body, _ in server.seen}) == 2


def test_a_stop_string_that_a_server_left_in_is_cut(server: Server) -> None:
    server.answer = lambda body, _: (200, {"choices": [{"text": "4\n\nmore END", "finish_reason": "length"}]})
    ((one,),) = engine(server).generate([request("p")], Sampling(seed=1, stop=("END", "\n\n")))
    assert (one.text, one.finished, one.logprobs) == ("4", False, ())


def test_chat_is_an_option(server: Server) -> None:
    server.answer = lambda body, _: (200, {"choices": [{"message": {"content": "hi"}}, {"message": {"content": None}}]})
    ((one, empty),) = engine(server, chat=True).generate([request("p", 2)], Sampling(seed=1))
    path, body, _ = server.seen[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "user", "content": "p"}]
    assert (one.text, empty.text) == ("hi", "")


def test_a_busy_server_is_asked_again(server: Server) -> None:
    server.answer = lambda body, count: (503, {}) if count < 3 else (200, completions(body))
    ((one,),) = engine(server).generate([request("p")], Sampling(seed=1))
    assert one.text == "p#0"
    assert len(server.seen) == 3


def test_a_server_that_stays_busy_is_given_up(server: Server) -> None:
    server.answer = lambda body, _: (429, {"error": "slow down"})
    with pytest.raises(ServerError, match=r"429.*slow down.*after 3 tries"):
        engine(server, retries=2).generate([request("p")], Sampling(seed=1))


def test_a_refused_request_is_not_repeated_and_its_reason_is_safe_to_print(server: Server) -> None:
    server.answer = lambda body, _: (404, b"no such model \x1b[2J" + b"x" * 10_000)
    with pytest.raises(ServerError, match="no such model") as caught:
        engine(server).generate([request("p")], Sampling(seed=1))
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>",
        b"[" * 100_000,
        b"7",
        {},
        {"choices": 3},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"text": 3}]},
        {"choices": ["x"]},
        {"choices": [{"text": "a"}, {"text": "b"}]},
        {"choices": [{"text": "a" * 1_200_000}]},
    ],
)
def test_nonsense_from_a_server_is_an_error_of_the_server(server: Server, answer: Any) -> None:
    server.answer = lambda body, _: (200, answer)
    with pytest.raises(ServerError):
        engine(server, retries=0).generate([request("p")], Sampling(seed=1))


@pytest.mark.parametrize(
    "logprobs",
    [
        None,
        3,
        {"token_logprobs": ["x"]},
        {"token_logprobs": [None]},
        {"token_logprobs": 1},
        {"token_logprobs": [10**400]},
        {"token_logprobs": [float("nan")]},
        {"token_logprobs": [float("-inf")]},
        {"content": [{"logprob": -(10**400)}]},
    ],
)
def test_log_probabilities_that_are_none_are_left_out(server: Server, logprobs: Any) -> None:
    server.answer = lambda body, _: (200, {"choices": [{"text": "a", "logprobs": logprobs, "token_ids": ["1"]}]})
    ((one,),) = engine(server).generate([request("p")], Sampling(seed=1))
    assert (one.logprobs, one.ids) == ((), ())


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 150\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"", b"H"),
    ],
    ids=["a body", "headers", "interim answers", "chunks", "a status"],
)
def test_an_answer_that_drips_is_not_waited_for(head: bytes, drop: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening, head, drop))
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        asked = OpenAIEngine(ServerSettings(url=url, model="m", timeout_s=0.4, retries=0), key="")
        with pytest.raises(ServerError, match="no whole answer within timeout_s"):
            asked.generate([request("p")], Sampling(seed=1))
        thread.join()


def drip(listening: socket.socket, head: bytes, drop: bytes) -> None:
    connection, _ = listening.accept()
    with connection, contextlib.suppress(OSError):
        connection.sendall(head)
        for _ in range(80):
            connection.sendall(drop)
            time.sleep(0.03)


def test_log_probabilities_are_read_as_llama_cpp_writes_them(server: Server) -> None:
    logprobs = {"content": [{"id": 216, "token": " ", "logprob": -0.5}, {"id": 34, "token": "2", "logprob": -1}]}
    server.answer = lambda body, _: (200, {"choices": [{"text": " 2", "logprobs": logprobs}]})
    ((one,),) = engine(server, logprobs=True).generate([request("p")], Sampling(seed=1))
    assert one.logprobs == (-0.5, -1.0)


def test_a_server_that_gives_one_completion_at_a_time_is_asked_for_the_rest(server: Server) -> None:
    server.answer = lambda body, _: (200, {"choices": [{"text": str(body["seed"])}]})
    ((*several,),) = engine(server).generate([request("p", 3)], Sampling(seed=1))
    assert len({one.text for one in several}) == 3
    assert [body["n"] for _, body, _ in server.seen] == [3, 2, 1]


def test_a_server_that_refuses_several_completions_is_asked_for_one_each(server: Server) -> None:
    server.answer = lambda body, _: (
        (400, "only one choice") if body["n"] > 1 else (200, {"choices": [{"text": str(body["seed"])}]})
    )
    own = engine(server, concurrency=1)
    ((*several,), (*more,)) = own.generate([request("p", 3), request("q", 2)], Sampling(seed=1))
    assert (len(several), len(more)) == (3, 2)
    assert [body["n"] for _, body, _ in server.seen] == [3, 1, 1, 1, 1, 1]


def test_a_server_that_does_not_sample_is_refused_where_it_should(server: Server) -> None:
    server.answer = lambda body, _: (200, {"choices": [{"text": body["prompt"] * 20}] * body["n"]})
    requests = [request(prompt, 8) for prompt in "pqr"]
    with pytest.raises(ServerError, match="does not sample"):
        engine(server).generate(requests, Sampling(seed=1))
    own = engine(server)
    for kind in (Sampling(seed=1, greedy=True), Sampling(seed=1, temperature=0.1)):
        assert len(own.generate(requests, kind)) == 3
    assert len(own.generate(requests[:2], Sampling(seed=1))) == 2  # too few to tell


def test_an_error_does_not_wait_for_other_requests(server: Server) -> None:
    never, slow = threading.Event(), threading.Event()

    def answer(body: dict[str, Any], _: int) -> Answer:
        if body["prompt"] == "slow":
            slow.set()
            never.wait(60)
        slow.wait(60)
        return 404, "no such model"

    server.answer = answer
    begun = time.monotonic()
    try:
        with pytest.raises(ServerError, match="no such model"):
            engine(server).generate([request("slow"), request("wrong")], Sampling(seed=1))
        assert time.monotonic() - begun < 30
    finally:
        never.set()


def test_the_key_is_sent_and_only_when_there_is_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.KEY_VARIABLE, "secret")
    OpenAIEngine(ServerSettings(url=server.url, model="m")).generate([request("p")], Sampling(seed=1))
    engine(server).generate([request("p")], Sampling(seed=1))
    assert [headers.get("Authorization") for _, _, headers in server.seen] == ["Bearer secret", None]


def test_an_unreachable_server_is_named(server: Server) -> None:
    server.server_close()
    with pytest.raises(ServerError, match=r"127\.0\.0\.1.*after 2 tries"):
        engine(server, retries=1).generate([request("p")], Sampling(seed=1))


def test_learning_is_refused_with_what_to_do_instead(server: Server) -> None:
    own = engine(server)
    for act in (lambda: own.step([], Update()), own.state, lambda: own.load({})):
        with pytest.raises(LearningRefused, match="--engine torch"):
            act()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x/v1", "http://user:pw@x/v1", "http:///v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SpecError):
        ServerSettings(url=url, model="m")
