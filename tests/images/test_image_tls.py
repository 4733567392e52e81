"""Registries with TLS, with and without a proxy. Names lead to loopback, whatever they are."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from harena.images import ImageStore, RegistryError
from harena.images.registry import transport
from harena.images.settings import ImageSettings
from support.registries import QUICK, Registry, tar_of

LAYER = tar_of({"file": b"x"})
HOST = "registry.example"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed: apt-get install openssl")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={HOST}", "-addext",
         f"subjectAltName=DNS:{HOST}", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


@pytest.fixture
def served(registry: Registry, certificate: Path, monkeypatch: pytest.MonkeyPatch):
    """A registry behind TLS, and every name of the world on loopback."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    server = registry._server
    true_accept = server.get_request

    def get_request():
        sock, peer = true_accept()
        sock.settimeout(5)
        try:
            return context.wrap_socket(sock, server_side=True), peer
        except (OSError, ssl.SSLError):
            sock.close()
            raise OSError("no TLS") from None

    monkeypatch.setattr(server, "get_request", get_request)
    true_lookup = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **rest: true_lookup("127.0.0.1", *more, **rest))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    transport._tls.cache_clear()
    yield registry
    transport._tls.cache_clear()


def name_of(registry: Registry, host: str = HOST) -> str:
    registry.tag("app:1", registry.add_image([LAYER]))
    return f"{host}:{registry.port}/app:1"


def test_a_registry_with_tls_is_pulled_from(served: Registry, store: ImageStore) -> None:
    served.token = "sesame"
    served.service_realm = f"https://{HOST}:{served.port}/token"
    assert store.pull(name_of(served)).layers


def test_an_unknown_certificate_is_refused(
    served: Registry, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    transport._tls.cache_clear()
    with pytest.raises(RegistryError, match=r"certificate of .* is not trusted .*SSL_CERT_FILE"):
        store.pull(name_of(served))
    assert served.seen == []


def test_a_certificate_of_another_name_is_refused(served: Registry, store: ImageStore) -> None:
    with pytest.raises(RegistryError, match=r"certificate of other.example.* is not trusted"):
        store.pull(name_of(served, "other.example"))
    assert served.seen == []


def test_a_redirect_to_plain_http_is_refused(served: Registry, store: ImageStore) -> None:
    with Registry() as plain:
        served.redirect = lambda path: f"http://{plain.host}{path}"
        name = name_of(served)
        plain.data = served.data
        with pytest.raises(RegistryError, match="without TLS, which is refused"):
            store.pull(name)
        assert plain.seen == []


def test_a_plain_token_server_is_refused(served: Registry, store: ImageStore) -> None:
    with Registry() as plain:
        served.token, served.service_realm = "sesame", f"http://{plain.host}/token"
        with pytest.raises(RegistryError, match="token server without TLS"):
            store.pull(name_of(served))
        assert plain.seen == []


def test_a_registry_that_speaks_no_tls_is_an_error(
    registry: Registry, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_lookup = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **rest: true_lookup("127.0.0.1", *more, **rest))
    with pytest.raises(RegistryError, match=r"no TLS connection|broke off|cannot be reached"):
        store.pull(name_of(registry))
    assert registry.seen == []


class Proxy:
    """Connects to one place, whatever it is asked for."""

    def __init__(self, port: int, status: str = "200 OK") -> None:
        self.port, self.status, self.asked = port, status, []
        self.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://me:p%40ss@127.0.0.1:{self.server.getsockname()[1]}"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.server.accept()
                threading.Thread(target=self._pass, args=(peer,), daemon=True).start()

    def _pass(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer, socket.create_connection(("127.0.0.1", self.port)) as far:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += peer.recv(1)
            self.asked.append(head.decode())
            peer.sendall(f"HTTP/1.1 {self.status}\r\nX: y\r\n\r\n".encode())
            back = threading.Thread(target=self._copy, args=(far, peer), daemon=True)
            back.start()
            self._copy(peer, far)
            back.join()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()


def test_a_proxy_is_used_and_sees_no_request(served: Registry, store: ImageStore) -> None:
    with Proxy(served.port) as proxy:
        far = ImageStore(store.folder, settings=replace(store.settings, https_proxy=proxy.url), patience=QUICK)
        far.pull(name_of(served))
        assert {head.split("\r\n")[0] for head in proxy.asked} == {f"CONNECT {HOST}:{served.port} HTTP/1.1"}
        assert all("Proxy-Authorization: Basic bWU6cEBzcw==" in head for head in proxy.asked)
        assert all("Proxy-Authorization" not in headers for _, headers in served.seen)


def test_a_proxy_that_refuses_is_named(served: Registry, store: ImageStore) -> None:
    with Proxy(served.port, "407 Proxy Authentication Required") as proxy:
        far = ImageStore(store.folder, settings=ImageSettings(store.folder, https_proxy=proxy.url), patience=QUICK)
        with pytest.raises(RegistryError, match=r"the proxy 127.0.0.1 refused a connection to .* \(407\)"):
            far.pull(name_of(served))
