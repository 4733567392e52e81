"""What a server that is no arena, or a broken or malicious one, can do to a client: nothing but make a call fail."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc

import pytest

from harena.client import ArenaClient, ArenaError, BadAnswer, Unreachable, calls, sse
from harena.client import session as session_module
from harena.errors import SpecError
from support.client_hostile import Server, answer, endless, stream

KEY = "hrn_0123456789"


@pytest.fixture
def serve():
    """Starts servers, and ends them."""
    servers = []

    def start(*answers):
        server = Server(lambda request, number: make(answers[min(number, len(answers) - 1)]))
        servers.append(server)
        return server

    def make(given):
        return given() if callable(given) else given

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def call(serve):
    clients = []

    def start(*answers, **options):
        made = ArenaClient(serve(*answers).url, timeout_s=2, **options)
        clients.append(made)
        return made

    yield start
    for made in clients:
        made.close()


def body_of(**fields) -> bytes:
    return answer(json.dumps(fields).encode())


def test_an_endless_body_is_cut_off_at_its_cap(call):
    endless_list = call(lambda: endless(b" " * 65536))
    tracemalloc.start()
    with pytest.raises(BadAnswer, match="more than"):
        endless_list.perform(lambda: calls.Call(path="/v1", decode=bytes, max_bytes=1 << 20))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_an_endless_error_is_cut_off_too(call):
    def refusing():
        yield b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
        while True:
            yield b"x" * 65536

    with pytest.raises(BadAnswer, match="more than"):
        call(refusing).health()


def test_an_answer_that_drips_for_ever_is_given_up(call, monkeypatch):
    monkeypatch.setattr(session_module, "SLOW", 0.2)

    def dripping():
        yield b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
        while True:
            time.sleep(0.05)
            yield b" "

    with pytest.raises(BadAnswer, match="took more than"):
        call(dripping).health()


def test_a_packed_answer_is_not_unpacked(call):
    bomb = gzip.compress(b" " * (1 << 20))
    with pytest.raises(BadAnswer, match="packed"):
        call(answer(bomb, headers=("Content-Encoding: gzip",))).health()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[1",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"status": NaN}',
        b'{"status": ' + b"9" * 5000 + b"}",
        b"[]",
        b"7",
    ],
)
def test_what_is_no_json_object_is_a_bad_answer(call, body):
    with pytest.raises(BadAnswer):
        call(answer(body)).health()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("score", "high"),
        ("score", True),
        ("score", 10**400),
        ("version", 1.5),
        ("version", 1 << 70),
        ("mine", 1),
        ("owner", ["a"]),
        ("owner", None),
        ("created_at", "yesterday"),
        ("created_at", 5),
        ("warnings", "none"),
        ("warnings", [1]),
        ("evaluation", []),
        ("evaluation", {"returns": [None]}),
        ("standing", {"rank": "1"}),
    ],
)
def test_a_field_of_the_wrong_type_is_a_bad_answer_that_names_it(call, field, value):
    with pytest.raises(BadAnswer, match=field):
        call(body_of(id="a1", **{field: value})).status("a1")


def test_infinity_in_disguise_is_refused(call):
    with pytest.raises(BadAnswer, match="score"):
        call(answer(b'{"id": "a1", "score": 1e999}')).status("a1")


def test_fields_of_a_newer_arena_are_dropped_and_those_of_an_older_one_have_defaults(call):
    found = call(body_of(id="a1", state="ranked", mood="sunny", score=None)).status("a1")
    assert (found.id, found.state, found.score, found.warnings) == ("a1", "ranked", None, None)


def test_an_answer_without_its_id_is_refused(call):
    with pytest.raises(BadAnswer, match=r"without submission\.id"):
        call(body_of(state="ranked")).status("a1")


def test_a_list_that_is_none_is_refused(call):
    with pytest.raises(BadAnswer, match="environments"):
        call(body_of(environments={"a": 1})).environments()


# ---- redirects and secrets ----


def test_a_redirect_to_another_server_is_not_followed_and_the_key_stays(serve, call):
    thief = serve(body_of(status="ok"))
    away = call(answer(b"", status="307 Temporary Redirect", headers=(f"Location: {thief.url}/health",)), key=KEY)
    with pytest.raises(BadAnswer, match="another server") as caught:
        away.health()
    assert thief.url in str(caught.value)
    assert thief.requests == []


@pytest.mark.parametrize(
    "place",
    [
        "//127.0.0.1:1/health",
        "https://{host}/health",
        "ftp://{host}/",
        "http://user@{host}:1/",
        "http://[::1/",
        "\\\\evil",
    ],
)
def test_ways_elsewhere_in_disguise_are_not_followed(serve, place):
    server = serve(lambda: b"")
    host = server.url.removeprefix("http://")
    server._answer = lambda request, number: answer(
        b"", status="302 Found", headers=(f"Location: {place.format(host=host)}",)
    )
    with ArenaClient(server.url, key=KEY, timeout_s=2) as client, pytest.raises((ArenaError, ValueError)):
        client.health()
    assert all(b"Host: " + host.encode() in request for request in server.requests)


def test_a_redirect_within_the_arena_is_followed(call):
    moved = answer(b"", status="307 Temporary Redirect", headers=("Location: /health/",))
    assert call(moved, body_of(status="ok")).health() == {"status": "ok"}


def test_streams_are_not_followed_elsewhere_at_all(call):
    moved = answer(b"", status="302 Found", headers=("Location: /other",), kind="text/event-stream")
    for take in (lambda: next(call(moved).watch("queue")), lambda: next(call(moved).export_stream("board", "x"))):
        with pytest.raises(BadAnswer, match="elsewhere"):
            take()


@pytest.mark.parametrize("last_id", ["1\r\nX-Evil: 1", "x", "²"])
def test_an_id_to_go_on_from_is_a_number(call, last_id):
    with pytest.raises(SpecError):
        next(call(b"").watch("queue", last_id=last_id))


def test_a_server_that_sends_us_round_in_circles_is_left(call):
    with pytest.raises(BadAnswer, match="round"):
        call(answer(b"", status="307 Temporary Redirect", headers=("Location: /health",))).health()


def test_a_submission_is_not_sent_on_after_a_redirect(serve, call):
    server = serve(answer(b"", status="307 Temporary Redirect", headers=("Location: /elsewhere",)))
    with ArenaClient(server.url) as client, pytest.raises(BadAnswer):
        client.submit(b"def act(o): return 0", "CartPole-v1")
    assert len(server.requests) == 1


def test_a_proxy_hears_nothing_about_a_server_on_this_machine(serve, monkeypatch):
    proxy, server = serve(body_of(status="proxy")), serve(body_of(status="ok"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with ArenaClient(server.url, key=KEY) as client:
        assert client.health() == {"status": "ok"}
    assert proxy.requests == []


def test_cookies_of_a_server_are_not_kept(serve):
    server = serve(answer(b"{}", headers=("Set-Cookie: harena=1; Path=/",)))
    with ArenaClient(server.url) as client:
        client.health(), client.health()
    assert not any(b"cookie" in request.lower() for request in server.requests)


def test_two_arenas_cannot_tell_that_a_client_is_the_same(serve):
    servers = [serve(body_of(id="a1")), serve(body_of(id="a1"))]
    for server in servers:
        with ArenaClient(server.url) as client:
            client.submit(b"x = 1", "CartPole-v1")
            client.status("a1")
    ids = [
        [line for line in request.split(b"\r\n") if line.startswith(b"X-Client-Id")]
        for server in servers
        for request in server.requests
    ]
    assert all(ids)
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert ids[0] != ids[2]


def test_the_key_is_in_no_repr_and_no_error(call):
    made = call(answer(b'{"detail": "no"}', status="401 Unauthorized"), key=KEY)
    with pytest.raises(ArenaError) as caught:
        made.me()
    assert KEY not in repr(made) + repr(made.__dict__) + str(caught.value) + repr(caught.value.__dict__)


# ---- errors and trying again ----


def test_the_arenas_own_words_are_in_the_error(call):
    words = {"code": "not_found", "detail": "no such submission", "hint": "look at /v1", "request_id": "r1"}
    with pytest.raises(ArenaError) as caught:
        call(answer(json.dumps(words).encode(), status="404 Not Found")).status("a1")
    error = caught.value
    assert (error.code, error.detail, error.hint, error.request_id, error.status) == (*words.values(), 404)
    assert str(error) == "no such submission; look at /v1"


@pytest.mark.parametrize(
    "body", [b"<html>Bad Gateway</html>", b'{"detail": [{"loc": 1}]}', b"[]", b"", b'{"detail": 5}']
)
def test_an_error_of_a_server_that_is_no_arena_still_says_its_status(call, body):
    with pytest.raises(ArenaError, match="500") as caught:
        call(answer(body, status="500 Internal Server Error")).me()
    assert caught.value.status == 500


def test_a_busy_arena_is_asked_again_after_the_pause_it_wants(serve):
    busy = answer(b'{"detail": "busy"}', status="503 Service Unavailable", headers=("Retry-After: 0",))
    server = serve(busy, busy, body_of(status="ok"))
    with ArenaClient(server.url) as client:
        assert client.health() == {"status": "ok"}
    assert len(server.requests) == 3


def test_an_arena_that_wants_a_long_pause_is_not_waited_for(serve):
    server = serve(
        answer(b'{"detail": "come back tomorrow"}', status="429 Too Many Requests", headers=("Retry-After: 86400",))
    )
    with ArenaClient(server.url) as client, pytest.raises(ArenaError, match="tomorrow"):
        client.health()
    assert len(server.requests) == 1


def test_what_changes_something_is_sent_once(serve):
    server = serve(answer(b'{"detail": "busy"}', status="503 Service Unavailable", headers=("Retry-After: 0",)))
    with ArenaClient(server.url) as client, pytest.raises(ArenaError, match="busy"):
        client.submit(b"x = 1", "CartPole-v1")
    assert len(server.requests) == 1


def test_a_connection_that_breaks_is_tried_again_for_reading_only(serve):
    server = serve(b"", b"", body_of(status="ok"))
    with ArenaClient(server.url) as client:
        assert client.health() == {"status": "ok"}
    server = serve(b"")
    with ArenaClient(server.url) as client, pytest.raises(Unreachable, match="lost"):
        client.cancel("a1")
    assert len(server.requests) == 1


# ---- events ----


def test_an_endless_line_of_events_is_cut_off(call, monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT", 1 << 20)
    with pytest.raises(BadAnswer, match="event of more than"):
        list(call(lambda: endless(b"x" * 65536, kind="text/event-stream")).watch("queue"))


def test_an_endless_event_of_short_lines_is_cut_off(call, monkeypatch):
    monkeypatch.setattr(sse, "MAX_EVENT", 1 << 20)
    with pytest.raises(BadAnswer, match="event of more than"):
        list(call(lambda: endless(b"data: x\n" * 8192, kind="text/event-stream")).watch("queue"))


def test_a_page_instead_of_events_is_refused(call):
    with pytest.raises(BadAnswer, match="no stream"):
        next(call(answer(b"<html>", kind="text/html")).watch("queue"))


def test_after_a_break_the_stream_goes_on_where_it_was(serve):
    first = stream(': hello\n\nid: 7\ndata: {"topic": "queue", "kind": "a"}\n\n')
    second = stream('id: 8\ndata: {"topic": "queue", "kind": "b", "body": {"n": 1}}\n\nevent: reset\ndata: {}\n\n')
    server = serve(first, second)
    with ArenaClient(server.url) as client:
        news = client.watch(["queue", "board:x"])
        found = [next(news) for _ in range(4)]
        news.close()
    assert [(notice.kind, notice.id) for notice in found] == [("reset", ""), ("a", "7"), ("b", "8"), ("reset", "8")]
    assert b"topics=queue%2Cboard%3Ax" in server.requests[0]
    assert b"last-event-id: 7" in server.requests[1].lower()


def test_an_event_id_cannot_put_anything_into_the_next_request(serve):
    server = serve(
        stream("id: 1\\r\\nX-Evil: 1\ndata: {}\n\nid: \x1b[2J\ndata: {}\n\n", "id: " + "9" * 100 + "\ndata: {}\n\n")
    )
    with ArenaClient(server.url) as client:
        news = client.watch("queue")
        found = [next(news) for _ in range(6)]
        news.close()
    assert all(len(notice.id) <= sse.MAX_ID and notice.id.isprintable() for notice in found)
    assert not any(line.lower().startswith(b"x-evil") for request in server.requests for line in request.split(b"\r\n"))


def test_a_match_is_followed_through_a_break_and_each_step_is_told_once(serve):
    frames = [f'event: frame\ndata: {{"step": {step}, "text": "{step}"}}\n\n' for step in range(4)]
    server = serve(stream(*frames[:2]), stream(*frames, "event: finished\ndata: {}\n\n"))
    with ArenaClient(server.url) as client:
        found = list(client.live("m1"))
    assert [frame.text for frame in found] == ["0", "1", "2", "3", ""]
    assert found[-1].event == "finished"


def test_waiting_goes_on_by_asking_where_there_are_no_events(serve):
    def make(request, number):
        if b"/v1/events" in request:
            return answer(b'{"detail": "no events here"}', status="404 Not Found")
        return body_of(id="a1", state="ranked" if number > 3 else "running")

    server = serve(b"")
    server._answer = make
    with ArenaClient(server.url) as client:
        assert client.wait("a1", 20).state == "ranked"


def test_waiting_outlasts_a_restart_of_the_arena(serve, monkeypatch):
    monkeypatch.setattr(session_module, "TRIES", 1)
    running, ranked = (body_of(id="a1", state=state) for state in ("running", "ranked"))
    server = serve(running, b"", b"", b"", ranked)
    with ArenaClient(server.url) as client:
        assert client.wait("a1", 30).state == "ranked"


def test_an_arena_that_was_never_there_is_not_waited_for():
    started = time.monotonic()
    with ArenaClient("http://127.0.0.1:1") as client, pytest.raises(Unreachable):
        client.wait("a1", 600)
    assert time.monotonic() - started < 10


def test_parsing_events_does_not_depend_on_where_the_pieces_are_cut():
    text = 'id: 1\r\nevent: frame\r\ndata: {"a":\r\ndata: "é"}\r\n\r\n: comment\n\ndata\n\nid: 2\ndata: x\n\n'.encode()
    whole = list(sse.Parser().feed(text))
    parser = sse.Parser()
    cut = [event for at in range(len(text)) for event in parser.feed(text[at : at + 1])]
    assert whole == cut
    assert [(event.event, event.data, event.id) for event in whole] == [
        ("frame", '{"a":\n"é"}', "1"),
        ("message", "", "1"),
        ("message", "x", "2"),
    ]
