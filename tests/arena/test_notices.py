"""Webhooks and mail: signed, retried, and sent only where the host allows."""

from __future__ import annotations

import contextlib
import http.server
import importlib
import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from harena.arena.db.models import Access, Conflict, EnvironmentKind, Event, HookKind, Scope
from harena.arena.db.notices import GIVE_UP_HOOK
from harena.arena.db.records import EvaluationOutcome
from harena.arena.db.store import Store
from harena.arena.notices import transport
from harena.arena.notices.service import RETRY_S, Notices
from harena.arena.notices.transport import MailServer, Undelivered, Webhooks, parse_url, signature
from harena.arena.settings import Settings
from harena.errors import SpecError
from support.entries import prepared_sqlite

ENV = "CartPole-v1"


@contextlib.contextmanager
def receiver(status=204, headers=(), delay_s=0.0):
    """An HTTP server on loopback that keeps what it got."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.path, dict(self.headers), body))
            time.sleep(delay_s)
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], got
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def world(tmp_path):
    """A store with its notices, whose steps the test takes."""
    made = []

    def make(**more):
        url = prepared_sqlite(tmp_path)
        settings = Settings(data=tmp_path, database_url=url, secret_key=b"k" * 32, workers=1, **more)
        store = Store(url)
        arena = SimpleNamespace(store=store, settings=settings, notices=Notices(store, settings))
        made.append(arena)
        arena.store.environments.put(ENV, EnvironmentKind.VERIFIED)
        arena.store.seasons.start(ENV, "season 1")
        for owner in ("ann", "bob"):
            arena.store.keys.create(owner, [Scope.SUBMIT])
        arena.notices.look()
        return arena

    yield make
    for arena in made:
        arena.notices.stop()
        arena.store.close()


def rank(arena, owner, score, algorithm="a"):
    store = arena.store
    made = store.submissions.add(owner, ENV, algorithm=algorithm, digest="0" * 64, main_file="a.py")
    with store.begin():
        store.submissions.check(made.id, made.kind)
        store.submissions.move(made.id, Event.QUEUE)
        store.submissions.move(made.id, Event.START)
        store.submissions.rank(made.id, EvaluationOutcome(score=score, low=score, high=score))
    return made.id


def test_a_result_is_sent_once_and_signed(world):
    with receiver() as (port, got):
        arena = world(webhooks=(f"127.0.0.1:{port}",))
        hook = arena.notices.add("ann", HookKind.WEBHOOK, f"http://127.0.0.1:{port}/news?x=1")
        of = rank(arena, "ann", 12.5)
        rank(arena, "bob", 1.0)
        assert arena.notices.look() > 0
        assert arena.notices.look() == 0
        while arena.notices.deliver_one():
            pass
        ((path, headers, body),) = got
    assert path == "/news?x=1"
    told = json.loads(body)
    assert (told["event"], told["submission_id"], told["state"], told["score"]) == ("result", of, "ranked", 12.5)
    at, mac = (part.partition("=")[2] for part in headers["Harena-Signature"].split(","))
    assert mac == signature(hook.secret, int(at), body)
    assert abs(time.time() - int(at)) < 600
    assert mac != signature("0" * 64, int(at), body)
    assert headers["Harena-Delivery"] == str(told["id"])
    assert "Authorization" not in headers
    assert "Cookie" not in headers


def test_two_processes_that_look_at_once_note_each_event_once(world):
    arena = world(webhooks=("127.0.0.1:9",))
    hook = arena.notices.add("ann", HookKind.WEBHOOK, "http://127.0.0.1:9/")
    for score in range(5):
        rank(arena, "ann", float(score), algorithm=f"a{score}")
    others = [Notices(arena.store, arena.settings) for _ in range(4)]
    threads = [threading.Thread(target=one.look) for one in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(arena.store.notices.deliveries_of(hook.id)) == 5


def test_a_change_of_rank_is_told_to_both_whom_it_moves(world):
    with receiver() as (port, got):
        arena = world(webhooks=(f"127.0.0.1:{port}",))
        rank(arena, "ann", 5.0)
        assert arena.notices.compare_ranks(ENV) == []
        for owner in ("ann", "bob"):
            arena.notices.add(owner, HookKind.WEBHOOK, f"http://127.0.0.1:{port}/{owner}")
        rank(arena, "bob", 9.0)
        changes = arena.notices.compare_ranks(ENV)
        assert {(one.owner, one.before, one.after) for one in changes} == {("ann", 1, 2), ("bob", None, 1)}
        assert arena.notices.compare_ranks(ENV) == []
        while arena.notices.deliver_one():
            pass
    told = {path: json.loads(body) for path, _, body in got}
    assert {path: (one["rank_before"], one["rank"]) for path, one in told.items()} == {
        "/ann": (1, 2),
        "/bob": (None, 1),
    }


def test_a_running_arena_delivers_by_itself(world):
    with receiver() as (port, got):
        arena = world(webhooks=(f"127.0.0.1:{port}",))
        arena.notices.add("ann", HookKind.WEBHOOK, f"http://127.0.0.1:{port}/")
        arena.notices.start()
        rank(arena, "ann", 1.0)
        end = time.monotonic() + 30
        while not got:
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 500])
def test_what_is_not_taken_is_tried_again_and_no_redirect_is_followed(world, status):
    with receiver() as (other, followed), receiver(status, [("Location", f"http://127.0.0.1:{other}/")]) as (port, got):
        arena = world(webhooks=(f"127.0.0.1:{port}", f"127.0.0.1:{other}"))
        hook = arena.notices.add("ann", HookKind.WEBHOOK, f"http://127.0.0.1:{port}/")
        rank(arena, "ann", 1.0)
        arena.notices.look()
        clock, now = arena.store.database, [time.time()]
        clock.clock = lambda: now[0]
        for wait_s in RETRY_S:
            now[0] += 1
            assert arena.notices.deliver_one()
            assert not arena.notices.deliver_one()
            now[0] += wait_s
        now[0] += 1
        assert arena.notices.deliver_one()
        (delivery,) = arena.store.notices.deliveries_of(hook.id)
        assert delivery.next_at is None
        assert delivery.done_at is None
        assert delivery.reason == f"the receiver answered with status {status}"
    assert len(got) == len(RETRY_S) + 1
    assert not followed


def test_a_webhook_that_nothing_reaches_is_switched_off(world):
    arena = world(webhooks=("127.0.0.1:9",))
    notices = arena.store.notices
    hook = arena.notices.add("ann", HookKind.WEBHOOK, "http://127.0.0.1:9/")
    for _ in range(GIVE_UP_HOOK):
        notices.add_delivery(hook.id, "result", {})
        notices.failed(notices.claim(60.0), "no", None)
    assert notices.hook(hook.id).disabled_at is not None
    assert notices.listening(["ann"]) == []


INSIDE = (
    "http://127.0.0.1:8000/v1/admin",
    "http://localhost:8000/",
    "http://[::1]:8000/",
    "http://[::ffff:127.0.0.1]:8000/",
    "http://2130706433:8000/",
    "http://0x7f000001:8000/",
    "http://0:8000/",
    "http://169.254.169.254:8000/latest/meta-data",
    "http://10.0.0.1:8000/",
    "http://hooks.example.org:22/",
    "http://hooks.example.org.evil.test:8000/",
    "http://hooks.example.org@127.0.0.1:8000/",
    "http://127.0.0.1:8000#@hooks.example.org:8000/",
    "https://evil.test:8000/?hooks.example.org",
    "ftp://hooks.example.org:8000/",
    "file:///etc/passwd",
    "gopher://hooks.example.org:8000/",
    "http://hooks.example.org:8000/\r\nX: y",
    "http://hooks.example.org:8000/ HTTP/1.1",
    "http:///nowhere",
    "http://hooks.example.org:99999/",
    "javascript:alert(1)",
    "http://" + "a" * 3000,
)


@pytest.mark.parametrize("target", INSIDE)
def test_a_webhook_to_what_the_host_does_not_allow_is_refused(world, target):
    arena = world(webhooks=("hooks.example.org:8000",))
    with pytest.raises(SpecError):
        arena.notices.add("ann", HookKind.WEBHOOK, target)
    assert arena.store.notices.hooks_of("ann") == []
    with pytest.raises(Undelivered) as refused:
        Webhooks(("hooks.example.org:8000",)).send(target, b"{}", {})
    assert refused.value.final


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1", "::ffff:127.0.0.1"])
def test_an_allowed_name_that_leads_inside_is_not_followed_there(monkeypatch, address):
    """A name that was outside when the webhook was made may lead inside when it is used."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    answer = [(family, socket.SOCK_STREAM, 6, "", (address, 8000))]
    monkeypatch.setattr(transport.socket, "getaddrinfo", lambda *_, **__: answer)
    connected = []
    monkeypatch.setattr(transport.socket, "create_connection", lambda *args, **_: connected.append(args))
    with pytest.raises(Undelivered, match="leads to no address"):
        Webhooks(("hooks.example.org:8000",)).send("http://hooks.example.org:8000/", b"{}", {})
    assert connected == []


def test_without_rules_there_are_no_webhooks_and_without_a_server_no_mail(world):
    arena = world()
    with pytest.raises(SpecError, match="HARENA_WEBHOOKS"):
        arena.notices.add("ann", HookKind.WEBHOOK, "https://hooks.example.org/")
    with pytest.raises(SpecError, match="HARENA_SMTP_URL"):
        arena.notices.add("ann", HookKind.MAIL, "ann@example.org")


@pytest.mark.parametrize(
    "garbage", [b"", b"\x00" * 5000, b"HTTP/1.1 200\r\n" + b"A: b\r\n" * 5000, b"HTTP/9 x y\r\n\r\n"]
)
def test_a_receiver_that_talks_nonsense_is_a_failed_delivery(garbage):
    server = socket.create_server(("127.0.0.1", 0))

    def answer():
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(garbage)

    threading.Thread(target=answer, daemon=True).start()
    port = server.getsockname()[1]
    with server, pytest.raises(Undelivered):
        Webhooks((f"127.0.0.1:{port}",)).send(f"http://127.0.0.1:{port}/", b"{}", {})


def test_a_receiver_that_drips_is_cut_off(monkeypatch):
    monkeypatch.setattr(transport, "TOTAL_S", 0.5)
    server = socket.create_server(("127.0.0.1", 0))

    def drip():
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                while True:
                    connection.sendall(b"H")
                    time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    port = server.getsockname()[1]
    began = time.monotonic()
    with server, pytest.raises(Undelivered):
        Webhooks((f"127.0.0.1:{port}",)).send(f"http://127.0.0.1:{port}/", b"{}", {})
    assert time.monotonic() - began < 60


def test_members_of_a_team_are_told_and_strangers_to_a_private_board_are_not(world):
    arena = world(webhooks=("127.0.0.1:9",))
    store = arena.store
    ann, bob = (arena.notices.add(owner, HookKind.WEBHOOK, "http://127.0.0.1:9/") for owner in ("ann", "bob"))
    store.teams.create("team", "ann")
    store.teams.invite("team", "bob", by="ann")
    rank(arena, "team", 1.0)
    arena.notices.look()
    assert (len(store.notices.deliveries_of(ann.id)), len(store.notices.deliveries_of(bob.id))) == (1, 0)
    store.teams.join("team", "bob")
    store.environments.put(ENV, EnvironmentKind.VERIFIED, access=Access.PRIVATE)
    store.guests.invite(ENV, "ann")
    rank(arena, "team", 2.0)
    arena.notices.look()
    assert (len(store.notices.deliveries_of(ann.id)), len(store.notices.deliveries_of(bob.id))) == (2, 0)


def test_an_owner_has_a_bounded_number_of_them(world):
    arena = world(webhooks=("127.0.0.1:9",))
    for _ in range(10):
        arena.notices.add("ann", HookKind.WEBHOOK, "http://127.0.0.1:9/")
    with pytest.raises(Conflict):
        arena.notices.add("ann", HookKind.WEBHOOK, "http://127.0.0.1:9/")


# ---- mail ----


@pytest.fixture
def mailbox():
    """A real SMTP server, and what it took."""
    controllers = pytest.importorskip("aiosmtpd.controller")

    class Box:
        def __init__(self):
            self.mails = []

        async def handle_DATA(self, server, session, envelope):
            self.mails.append(envelope)
            return "250 taken"

    box = Box()
    controller = controllers.Controller(box, hostname="127.0.0.1", port=0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        controller.port = free.getsockname()[1]
    controller.start()
    box.url = f"smtp://127.0.0.1:{controller.port}"
    yield box
    controller.stop()


def test_mail_is_sent_after_the_address_was_confirmed(world, mailbox):
    arena = world(smtp_url=mailbox.url, mail_from="arena@example.org")
    hook = arena.notices.add("ann", HookKind.MAIL, "ann@example.org")
    rank(arena, "ann", 1.0)
    arena.notices.look()
    while arena.notices.deliver_one():
        pass
    (first,) = mailbox.mails
    assert first.rcpt_tos == ["ann@example.org"]
    assert first.mail_from == "arena@example.org"
    assert hook.secret.encode() in first.content
    arena.store.notices.confirm(hook.id)
    rank(arena, "ann", 2.5, algorithm="\u00fcber =?utf-8?q?x?=")
    arena.notices.look()
    while arena.notices.deliver_one():
        pass
    message = importlib.import_module("email").message_from_bytes(
        mailbox.mails[1].content, policy=importlib.import_module("email.policy").default
    )
    assert "\u00fcber" in message["Subject"]
    assert "2.5" in message.get_content()
    assert len(mailbox.mails) == 2


@pytest.mark.parametrize(
    "target",
    [
        "ann",
        "ann@",
        "@x.org",
        "ann@x.org\r\nBcc: all@x.org",
        "a@x.org,b@x.org",
        "ann@x.org>",
        "a b@x.org",
        "a@" + "x" * 300,
    ],
)
def test_a_mail_address_that_could_be_more_than_one_is_refused(world, target):
    arena = world(smtp_url="smtp://127.0.0.1:9")
    with pytest.raises(SpecError):
        arena.notices.add("ann", HookKind.MAIL, target)


def test_a_mail_server_that_is_away_is_tried_again_and_a_password_is_not_sent_in_the_open(world, mailbox):
    with pytest.raises(Undelivered):
        MailServer.parse("smtp://127.0.0.1:9").send("a@x.org", "b@x.org", "s", "t")
    url = mailbox.url.replace("smtp://", "smtp://user:secretword@")
    with pytest.raises(Undelivered):
        MailServer.parse(url).send("a@x.org", "b@x.org", "s", "t")
    assert mailbox.mails == []
    assert "secretword" not in repr(MailServer.parse(url))
    with pytest.raises(SpecError) as refused:
        MailServer.parse("imap://user:secretword@host")
    assert "secretword" not in str(refused.value)


def test_urls_are_taken_apart_as_they_are_sent():
    url = parse_url("https://Hooks.Example.org/a/b?c=d")
    assert (url.scheme, url.host, url.port, url.path) == ("https", "hooks.example.org", 443, "/a/b?c=d")
