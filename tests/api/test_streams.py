"""Server-sent events: quick, complete, resumed, bounded, and over when either side is."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from harena.api.app import create_app
from harena.http.limits import RequestLimits
from support import busy
from support.served import ENV, Server, events, rank, ranked, submitted


@contextlib.contextmanager
def stream(server, topics, **headers):
    with (
        server.client() as client,
        client.stream("GET", "/v1/events", params={"topics": topics}, headers=headers) as answer,
    ):
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        assert next(lines) == "retry: 1000"  # so it is open
        yield events(lines)


@pytest.mark.serial
def test_a_result_reaches_an_open_stream_well_below_100_ms(server, arena, client):
    took = []
    with busy.Span() as span, stream(server, f"board:{ENV}") as told:
        for number in range(10):
            submission_id = submitted(client, user_id=f"quick{number}")
            rank(arena, submission_id, 1.0)
            began = time.perf_counter()
            _, _, data = next(told)
            took.append(time.perf_counter() - began)
            assert data["topic"] == f"board:{ENV}"
    assert sorted(took)[5] < span.limit(0.1), took


def test_every_state_of_a_submission_is_told_in_order_and_without_secrets(server, arena, client):
    submission_id = submitted(client, user_id="followed", client_id="secret-client")
    with stream(server, f"submission:{submission_id}") as told:
        rank(arena, submission_id, 5.0)
        heard = [next(told) for _ in range(2)]
    assert [data["body"]["state"] for _, _, data in heard] == ["running", "ranked"]
    assert "secret" not in str(heard)
    assert int(heard[0][0]) < int(heard[1][0])


def test_a_stream_resumes_after_the_last_event_it_had(server, arena, client):
    submission_id = submitted(client, user_id="resumed")
    with stream(server, f"submission:{submission_id}") as told:
        rank(arena, submission_id, 5.0)
        first, _ = next(told), next(told)
    with stream(server, f"submission:{submission_id}", **{"Last-Event-ID": first[0]}) as told:
        number, _, data = next(told)
        assert data["body"]["state"] == "ranked"
        assert int(number) > int(first[0])


def test_who_has_missed_too_much_or_comes_from_the_future_is_told_to_read_again(server):
    with stream(server, f"board:{ENV}", **{"Last-Event-ID": "999999999999"}) as told:
        assert next(told)[1] == "reset"


def test_several_topics_in_one_stream(server, arena, client):
    one, two = submitted(client, user_id="several"), submitted(client, user_id="several")
    with stream(server, f"submission:{one},submission:{two},queue") as told:
        rank(arena, one, 1.0)
        rank(arena, two, 1.0)
        topics = {next(told)[2]["topic"] for _ in range(4)}
    assert topics == {f"submission:{one}", f"submission:{two}"}


def test_there_are_only_so_many_streams_of_an_address_and_in_all(arena):
    app = create_app(arena, loopback=True, limits=RequestLimits(streams_per_address=2, streams=3))
    with Server(app) as server, contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(stream(server, "queue"))
        with server.client() as client:
            refused = client.get("/v1/events?topics=queue")
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        stack.close()
        deadline = time.monotonic() + 5
        while app.state.api.metrics.streams._value.get() and time.monotonic() < deadline:
            time.sleep(0.01)
        with stream(server, "queue"):
            pass


def test_a_client_that_leaves_frees_its_stream(server):
    gauge = server.app.state.api.metrics.streams._value
    deadline = time.monotonic() + 5
    while gauge.get() and time.monotonic() < deadline:
        time.sleep(0.01)
    connection = server.connect()
    connection.sendall(b"GET /v1/events?topics=queue HTTP/1.1\r\nHost: localhost\r\n\r\n")
    connection.recv(1000)
    assert gauge.get() == 1
    connection.close()
    deadline = time.monotonic() + 5
    while gauge.get() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gauge.get() == 0


def test_streams_end_when_the_server_stops(arena):
    ended = threading.Event()
    opened = threading.Event()
    with Server(create_app(arena, loopback=True)) as server:

        def listen():
            with server.client() as client, client.stream("GET", "/v1/events?topics=queue") as answer:
                opened.set()
                for _ in answer.iter_lines():
                    pass
            ended.set()

        thread = threading.Thread(target=listen)
        thread.start()
        assert opened.wait(30)
    assert ended.wait(10)
    thread.join()


def test_a_slow_reader_does_not_hold_the_others_up(server, arena, client):
    """One that reads nothing keeps at most so many events, and the rest go on."""
    lazy = server.connect()
    lazy.sendall(f"GET /v1/events?topics=board:{ENV} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    with stream(server, f"board:{ENV}") as told:
        with arena.store.begin():
            for number in range(3000):
                arena.store.events.publish(f"board:{ENV}", "test", {"number": number, "padding": "x" * 200})
        began = time.perf_counter()
        seen = 0
        while seen < 2999:
            _, kind, data = next(told)
            seen = 2999 if kind == "reset" else data["body"].get("number", 0)
        assert time.perf_counter() - began < 30
    lazy.close()
    ranked(arena, client, user_id="after-the-flood")


# ---- matches ----


@pytest.mark.serial
def test_a_match_is_watched_from_its_first_frame_to_its_end(server, arena, client):
    """Frames as a runner would tell them."""
    ids = [ranked(arena, client, user_id=f"player{seat}", env_id="tictactoe-v1") for seat in range(2)]
    match = arena.store.matches.create("tictactoe-v1", ids, seed=7)
    arena.hub.frame(match.id, {"type": "started"})
    arena.hub.frame(match.id, {"type": "step", "step": 1})
    with server.client() as http, http.stream("GET", f"/v1/matches/{match.id}/live") as answer:
        told = events(answer.iter_lines())
        assert [next(told)[2]["type"] for _ in range(2)] == ["started", "step"]
        with busy.Span() as span:
            arena.hub.frame(match.id, {"type": "step", "step": 2})
            assert next(told)[2]["step"] == 2
        assert span.took_s < span.limit(1)
        arena.matches.void(match.id, "the test is over")
        assert [kind for _, kind, _ in told] == ["finished"]
    with server.client() as http, http.stream("GET", f"/v1/matches/{match.id}/live") as answer:
        assert [kind for _, kind, _ in events(answer.iter_lines())] == ["finished"]


@pytest.mark.parametrize("bad", ["0" * 32, "x", "%2e%2e"])
def test_no_stream_of_a_match_that_is_none(client, bad):
    assert client.get(f"/v1/matches/{bad}/live").status_code == 404
