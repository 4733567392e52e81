"""code_url as an attacker would write it. Nothing leaves the loopback interface: names are answered by a table."""

from __future__ import annotations

import contextlib
import http.server
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harena.match.executor import fetch
from harena.match.executor.config import S3, Fetch
from harena.match.executor.fetch import Fetcher, FetchFailed, FetchRefused

BODY = b"def act(observation):\n    return 0\n"


class Site:
    """An HTTP server whose paths are functions of the handler."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.paths: dict[str, Callable[[http.server.BaseHTTPRequestHandler], None]] = {"/agent.py": send(BODY)}
        self.seen: list[tuple[str, dict[str, str]]] = []
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.seen.append((self.path, {key.lower(): value for key, value in self.headers.items()}))
                # A client that has seen enough goes away in the middle.
                with contextlib.suppress(OSError):
                    site.paths.get(self.path.partition("?")[0], not_found)(self)

            def log_message(self, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def send(body: bytes, status: int = 200, **headers: str) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def not_found(handler: http.server.BaseHTTPRequestHandler) -> None:
    send(b"", 404)(handler)


def redirect(to: str) -> Callable[[http.server.BaseHTTPRequestHandler], None]:
    return send(b"", 302, Location=to)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def resolver(**names: str | list[str]) -> fetch.Resolver:
    table = {name.replace("_", "."): found for name, found in names.items()}

    def resolve(host: str, port: int) -> list[str]:
        if host in table:
            found = table[host]
            return found if isinstance(found, list) else [found]
        socket.inet_pton(socket.AF_INET6 if ":" in host else socket.AF_INET, host)  # a literal, or OSError
        return [host]

    return resolve


def fetcher(site: Site, **settings: object) -> Fetcher:
    """Allows http and one host, files.test, which lives on the loopback."""
    hosts = (f"files.test:{site.port}",)
    chosen = {"allow_http": True, "allow_hosts": hosts, "private_hosts": hosts, "timeout_sec": 5.0, **settings}
    return Fetcher(Fetch(**chosen), resolve=resolver(files_test="127.0.0.1"), environ={})  # type: ignore[arg-type]


def test_an_allowed_url_gives_its_bytes(site: Site) -> None:
    assert fetcher(site).fetch(f"http://files.test:{site.port}/agent.py") == BODY
    path, headers = site.seen[0]
    assert (path, headers["host"]) == ("/agent.py", f"files.test:{site.port}")


def test_as_it_comes_nothing_is_allowed_and_the_error_names_the_key() -> None:
    closed = Fetcher(Fetch())
    for url, key in {
        "https://example.org/a.zip": "fetch.allow_hosts",
        "http://example.org/a.zip": "fetch.allow_http",
        "s3://bucket/a.zip": "fetch.s3.endpoint",
        "file:///etc/passwd": "--files.*fetch.file_folder",
        "/etc/passwd": "--files.*fetch.file_folder",
        "agents/a.py": "fetch.file_folder",
    }.items():
        with pytest.raises(FetchRefused, match=key):
            closed.check(url)
        with pytest.raises(FetchRefused, match=key):
            closed.fetch(url)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://files.test/a",
        "gopher://files.test/a",
        "data:text/plain,x",
        "https://user:secret@files.test/a",
        "https:///a",
        "https://files.test:99999/a",
        "https://[::1/a",
        "https://files.test/a b",
        "https://files.test/a\r\nHost: evil",
        "https://files.test\\@evil.test/a",
        "https://files.test/" + "a" * 3000,
        "//files.test/a",
        "",
    ],
)
def test_a_malformed_url_is_refused(url: str) -> None:
    settings = Fetch(allow_hosts=("files.test",))
    with pytest.raises(FetchRefused):
        Fetcher(settings, resolve=resolver()).fetch(url)


def test_a_host_or_port_that_is_not_listed_is_refused() -> None:
    some = Fetcher(Fetch(allow_hosts=("files.test", "*.cdn.test", "other.test:8443")), resolve=resolver())
    for url in ("https://files.test/a", "https://FILES.test/a", "https://a.b.cdn.test/a", "https://other.test:8443/a"):
        some.check(url)
    for url in (
        "https://evil.test/a",
        "https://files.test.evil.test/a",
        "https://evilfiles.test/a",
        "https://cdn.test/a",
        "https://xcdn.test/a",
        "https://files.test:8443/a",
        "https://other.test/a",
    ):
        with pytest.raises(FetchRefused, match=r"not in fetch\.allow_hosts"):
            some.check(url)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "10.0.0.1",
        "172.16.3.4",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::127.0.0.1",
        "2002:7f00:1::",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2001:db8::1",
        "2001:0:7f00:1:0:0:80ff:fffe",
        "not an address",
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not fetch.is_public(address)
    listed = Fetcher(Fetch(allow_hosts=("files.test",)), resolve=resolver(files_test=["93.184.216.34", address]))
    with pytest.raises(FetchRefused, match="not public"):
        listed.fetch("https://files.test/a")


def test_public_addresses_are_public() -> None:
    assert all(map(fetch.is_public, ("93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "64:ff9b::808:808")))


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]"])
def test_spellings_of_the_loopback_are_refused_even_where_listed(host: str) -> None:
    # The system's own resolver reads these without asking anybody.
    listed = Fetcher(Fetch(allow_hosts=(host,)))
    with pytest.raises(FetchRefused, match="not public"):
        listed.fetch(f"https://{host}/a")


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1:{port}/agent.py",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::1]:{port}/agent.py",
        "http://2130706433:{port}/agent.py",
        "http://rebound.test:{port}/agent.py",
        "//127.0.0.1:{port}/agent.py",
        "http://evil.test/",
        "file:///etc/passwd",
        "s3://bucket/key",
        "gopher://files.test/",
        "http://user@files.test:{port}/agent.py",
        "http://files.test:{port}/\u00e4",
    ],
)
def test_a_redirect_to_anywhere_else_is_refused(site: Site, to: str) -> None:
    site.paths["/start"] = redirect(to.format(port=site.port))
    # The worst case: the target's name is listed, as a name; its address is still not public.
    hosts = (
        f"files.test:{site.port}",
        f"127.0.0.1:{site.port}",
        f"[::1]:{site.port}",
        f"rebound.test:{site.port}",
        f"2130706433:{site.port}",
        "169.254.169.254",
    )
    settings = Fetch(allow_http=True, allow_hosts=hosts, private_hosts=hosts[:1], timeout_sec=5)
    names = resolver(files_test="127.0.0.1", rebound_test="127.0.0.1", **{"2130706433": "127.0.0.1"})
    with pytest.raises(FetchRefused):
        Fetcher(settings, resolve=names).fetch(f"http://files.test:{site.port}/start")
    assert [path for path, _ in site.seen] == ["/start"]


def test_a_name_that_changes_its_address_after_the_check_gains_nothing(site: Site) -> None:
    answers = iter([["93.184.216.34", "127.0.0.1"], ["127.0.0.1"]])
    rebinding = Fetcher(
        Fetch(allow_http=True, allow_hosts=(f"files.test:{site.port}",)), resolve=lambda host, port: next(answers)
    )
    with pytest.raises(FetchRefused, match=r"127\.0\.0\.1"):
        rebinding.fetch(f"http://files.test:{site.port}/agent.py")
    # And a checked address is the one that is connected to: the name is not asked a second time.
    asked: list[str] = []

    def once(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.1"]

    hosts = (f"files.test:{site.port}",)
    settings = Fetch(allow_http=True, allow_hosts=hosts, private_hosts=hosts)
    assert Fetcher(settings, resolve=once).fetch(f"http://files.test:{site.port}/agent.py") == BODY
    assert asked == ["files.test"]


def test_redirects_among_allowed_hosts_are_followed_three_times(site: Site) -> None:
    site.paths |= {"/1": redirect("/2"), "/2": redirect("3"), "/3": redirect("/agent.py"), "/loop": redirect("/loop")}
    assert fetcher(site).fetch(f"http://files.test:{site.port}/1") == BODY
    site.seen.clear()
    with pytest.raises(FetchFailed, match="more than 3 redirects"):
        fetcher(site).fetch(f"http://files.test:{site.port}/loop")
    assert len(site.seen) == 4


def test_a_signature_in_the_query_is_sent_and_stays_out_of_errors(site: Site) -> None:
    with pytest.raises(FetchFailed, match="404") as caught:
        fetcher(site).fetch(f"http://files.test:{site.port}/missing?signature=secret")
    assert site.seen[0][0] == "/missing?signature=secret"
    assert "secret" not in str(caught.value)


def test_an_endless_body_ends_at_the_cap(site: Site) -> None:
    sent = 0

    def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.end_headers()
        while True:
            sent += handler.wfile.write(b"x" * 65536)

    site.paths["/endless"] = endless
    with pytest.raises(FetchFailed, match="larger than 1 MB"):
        fetcher(site, max_mb=1).fetch(f"http://files.test:{site.port}/endless")
    assert sent < 32 << 20


def test_a_declared_length_above_the_cap_is_refused_unread(site: Site) -> None:
    site.paths["/large"] = send(b"x", Content_Length=str(1 << 40))
    with pytest.raises(FetchFailed, match="larger than 50 MB"):
        fetcher(site).fetch(f"http://files.test:{site.port}/large")


@pytest.mark.parametrize("length", ["100", "-1", "1e3", "\u0661"])
def test_a_wrong_content_length_is_an_error(site: Site, length: str) -> None:
    def lie(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: " + length.encode() + b"\r\n\r\nshort")

    site.paths["/short"] = lie
    with pytest.raises(FetchFailed, match=r"cut off|no number"):
        fetcher(site).fetch(f"http://files.test:{site.port}/short")


def test_a_compressed_answer_is_refused(site: Site) -> None:
    site.paths["/bomb"] = send(b"\x1f\x8b", Content_Encoding="gzip")
    with pytest.raises(FetchFailed, match="compressed"):
        fetcher(site).fetch(f"http://files.test:{site.port}/bomb")


@pytest.mark.parametrize("more", [b"x", b""])
@pytest.mark.parametrize("first", [b"", b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_a_server_that_drips_or_stalls_is_left_at_the_deadline(site: Site, first: bytes, more: bytes) -> None:
    over = threading.Event()

    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.wfile.write(first)
        while not over.wait(0.02):
            handler.wfile.write(more)

    site.paths["/drip"] = drip
    before = time.monotonic()
    with pytest.raises(FetchFailed, match=r"longer than 0\.3 s"):
        fetcher(site, timeout_sec=0.3).fetch(f"http://files.test:{site.port}/drip")
    over.set()
    assert time.monotonic() - before < 30


def test_a_cancelled_fetch_stops(site: Site) -> None:
    with pytest.raises(FetchFailed, match="cancelled"):
        fetcher(site).fetch(f"http://files.test:{site.port}/agent.py", cancelled=lambda: True)


def test_what_is_no_http_and_what_does_not_listen_are_failures(site: Site) -> None:
    site.paths["/nonsense"] = lambda handler: handler.wfile.write(b"\x00" * 100)  # type: ignore[assignment,return-value]
    with pytest.raises(FetchFailed):
        fetcher(site).fetch(f"http://files.test:{site.port}/nonsense")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        hosts = (f"files.test:{port}",)
        with pytest.raises(FetchFailed, match="refused"):
            fetcher(site, allow_hosts=hosts, private_hosts=hosts).fetch(f"http://files.test:{port}/a")


# ---- https ----


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("host: no openssl command to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=files.test",
            "-addext",
            "subjectAltName=DNS:files.test",
            "-keyout",
            folder / "key.pem",
            "-out",
            folder / "cert.pem",
        ],
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture
def secure_site(certificate: Path) -> Iterator[Site]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    made = Site(context)
    yield made
    made.close()


def test_https_checks_the_certificate_against_the_name(secure_site: Site, certificate: Path) -> None:
    port = secure_site.port
    hosts = (f"files.test:{port}", f"other.test:{port}")
    settings = Fetch(allow_hosts=hosts, private_hosts=hosts, ca_file=certificate / "cert.pem", timeout_sec=5)
    names = resolver(files_test="127.0.0.1", other_test="127.0.0.1")
    trusting = Fetcher(settings, resolve=names)
    assert trusting.fetch(f"https://files.test:{port}/agent.py") == BODY
    with pytest.raises(FetchFailed, match=r"(?i)certificate"):
        trusting.fetch(f"https://other.test:{port}/agent.py")
    with pytest.raises(FetchFailed, match=r"(?i)certificate"):
        Fetcher(Fetch(allow_hosts=hosts, private_hosts=hosts), resolve=names).fetch(f"https://files.test:{port}/a")


def test_a_redirect_from_https_to_http_is_refused(secure_site: Site, site: Site, certificate: Path) -> None:
    secure_site.paths["/down"] = redirect(f"http://files.test:{site.port}/agent.py")
    hosts = (f"files.test:{secure_site.port}", f"files.test:{site.port}")
    settings = Fetch(allow_http=True, allow_hosts=hosts, private_hosts=hosts, ca_file=certificate / "cert.pem")
    with pytest.raises(FetchRefused, match="from https to http"):
        Fetcher(settings, resolve=resolver(files_test="127.0.0.1")).fetch(f"https://files.test:{secure_site.port}/down")
    assert not site.seen


# ---- s3 ----


def s3(site: Site, **environ: str) -> Fetcher:
    settings = Fetch(s3=S3(endpoint=f"http://127.0.0.1:{site.port}/store", buckets=("agents",)))
    return Fetcher(settings, environ=environ)


def test_s3_is_read_from_the_endpoint_and_signed_with_the_environment(site: Site) -> None:
    site.paths["/store/agents/a%20b/c.zip"] = send(b"zip")
    assert s3(site).fetch("s3://agents/a%20b/c.zip") == b"zip"
    assert "authorization" not in site.seen[-1][1]
    keys = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_SESSION_TOKEN": "session"}
    assert s3(site, **keys).fetch("s3://agents/a%20b/c.zip") == b"zip"
    headers = site.seen[-1][1]
    assert headers["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKID/")
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token" in headers["authorization"]
    assert headers["host"] == f"127.0.0.1:{site.port}"


def test_only_listed_buckets_and_plain_keys_are_read(site: Site) -> None:
    for url in (
        "s3://private/key",
        "s3://agents/../private/key",
        "s3://agents/%2e%2e/private/key",
        "s3://agents/",
        "s3://agents",
        "s3://agents/a%00b",
        "s3://user@agents/key",
        "s3://agents//key",
    ):
        with pytest.raises(FetchRefused):
            s3(site).fetch(url)
    assert not site.seen


def test_an_s3_answer_does_not_carry_the_signature_elsewhere(site: Site) -> None:
    site.paths["/store/agents/key"] = redirect(f"http://127.0.0.1:{site.port}/agent.py")
    with pytest.raises(FetchFailed, match="not followed"):
        s3(site, AWS_ACCESS_KEY_ID="AKID", AWS_SECRET_ACCESS_KEY="hush").fetch("s3://agents/key")
    assert len(site.seen) == 1


def test_the_signature_is_that_of_the_published_example() -> None:
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "range": "bytes=0-9",
        "x-amz-content-sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "x-amz-date": "20130524T000000Z",
    }
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    signed = fetch.sign(headers, "/test.txt", "AKIAIOSFODNN7EXAMPLE", secret, "us-east-1")
    assert signed.endswith("Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41")


# ---- file ----


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "agents"
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "agent.py").write_bytes(BODY)
    (tmp_path / "secret.py").write_bytes(b"secret")
    (tmp_path / "agents-secret.py").write_bytes(b"secret")
    return made


def test_a_file_below_the_folder_is_read(folder: Path) -> None:
    allowed = Fetcher(Fetch(file_folder=folder))
    (folder / "link.py").symlink_to(folder / "deep" / "agent.py")
    for name in ("deep/agent.py", "deep/../deep/agent.py", "link.py", "deep/%61gent.py"):
        assert allowed.fetch(f"file://{folder}/{name}") == BODY
    assert allowed.fetch(f"file://localhost{folder}/deep/agent.py") == BODY


def test_a_plain_path_is_read_absolute_or_from_the_folder(folder: Path) -> None:
    allowed = Fetcher(Fetch(file_folder=folder))
    (folder / "100% my agent.py").write_bytes(BODY)
    for path in (f"{folder}/deep/agent.py", "deep/agent.py", "./deep/agent.py", "100% my agent.py"):
        allowed.check(path)
        assert allowed.fetch(path) == BODY
    (folder / "out.py").symlink_to(folder.parent / "secret.py")
    for path in (
        "../secret.py",
        "out.py",
        f"{folder}/../secret.py",
        "/etc/passwd",
        ".",
        "",
        "a\0b",
        f"{folder}-secret.py",
    ):
        with pytest.raises(FetchRefused, match=r"--files, fetch\.file_folder"):
            allowed.fetch(path)


def test_nothing_outside_of_the_folder_is_read(folder: Path) -> None:
    allowed = Fetcher(Fetch(file_folder=folder))
    (folder / "out.py").symlink_to(folder.parent / "secret.py")
    (folder / "up").symlink_to(folder.parent)
    for path in (
        f"{folder}/../secret.py",
        f"{folder}/%2e%2e/secret.py",
        f"{folder}/..%2fsecret.py",
        f"{folder}/out.py",
        f"{folder}/up/secret.py",
        f"{folder}-secret.py",
        "/etc/passwd",
        f"{folder}",
        f"{folder}/",
        f"{folder}/a%00b",
    ):
        with pytest.raises(FetchRefused):
            allowed.fetch(f"file://{path}")
    for url in (
        f"file://elsewhere{folder}/deep/agent.py",
        f"file:{folder.name}/deep/agent.py",
        "file:deep/agent.py",
        f"file://{folder}/deep/agent.py?x",
    ):
        with pytest.raises(FetchRefused):
            allowed.fetch(url)


def test_a_link_put_in_place_after_the_check_is_not_followed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = Fetcher(Fetch(file_folder=folder))
    checked = allowed._file_parts(f"file://{folder}/deep/agent.py")
    shutil.rmtree(folder / "deep")
    (folder.parent / "elsewhere").mkdir()
    (folder.parent / "elsewhere" / "agent.py").write_bytes(b"secret")
    (folder / "deep").symlink_to(folder.parent / "elsewhere")
    monkeypatch.setattr(allowed, "_file_parts", lambda url: checked)
    with pytest.raises(FetchFailed):
        allowed.fetch(f"file://{folder}/deep/agent.py")


def test_what_is_not_a_plain_file_or_too_large_fails(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "large").write_bytes(b"x" * ((1 << 20) + 1))
    allowed = Fetcher(Fetch(file_folder=folder, max_mb=1))
    for name in ("pipe", "deep", "missing.py", "large"):
        with pytest.raises(FetchFailed, match=name):
            allowed.fetch(f"file://{folder}/{name}")
