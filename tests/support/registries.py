"""A registry on loopback for tests, in a thread. It serves images made by hand, and misbehaves on request."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import socket
import struct
import tarfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from harena.images.reference import Platform
from harena.images.registry.transport import TransportPatience

PATIENT = TransportPatience(
    connect_s=20, idle_s=30, small_s=60, window_s=30, min_rate=100, attempts=3, backoff_s=0.01, longest_wait_s=2
)
"""For a server that means well on a machine that has other work."""
QUICK = TransportPatience(
    connect_s=2, idle_s=1, small_s=3, window_s=0.4, min_rate=1000, attempts=3, backoff_s=0.01, longest_wait_s=2
)

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_GZIP = "application/vnd.oci.image.layer.v1.tar+gzip"


def tar_of(files):
    """A tar with these files, of bytes by name; None makes a folder."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Blobs:
    """What images consist of, by digest."""

    def __init__(self):
        self.data = {}
        self.types = {}

    def add(self, data, kind="application/octet-stream"):
        digest = digest_of(data)
        self.data[digest], self.types[digest] = data, kind
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def add_json(self, fields, kind):
        return self.add(json.dumps(fields).encode(), kind)

    def add_image(self, layers, *, config=None, compress=gzip.compress, kind=OCI_GZIP, platform=None):
        """An image with layers that are given as plain tars. Returns the descriptor of its manifest."""
        machine = platform or Platform.of_host()
        fields = {
            "architecture": machine.architecture,
            "os": machine.os,
            "config": config or {},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer) for layer in layers]},
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": self.add_json(fields, OCI_CONFIG),
            "layers": [self.add(compress(layer), kind) for layer in layers],
        }
        return self.add_json(manifest, OCI_MANIFEST)


class Registry(Blobs):
    """`tags` has the digest of a manifest by (repository, tag). The other attributes make it misbehave."""

    def __init__(self, address="127.0.0.1"):
        super().__init__()
        self.address = address
        self.tags = {}
        self.seen = []
        """(path, headers) of each request."""
        self.served = Counter()
        """Body bytes sent, by the last part of the path."""
        self.token = None
        self.password = None
        self.service_realm = None
        self.redirect = None
        """A function of (path) that gives the Location for blobs, or None."""
        self.answers = []
        """(status, headers) to answer the next requests with."""
        self.cut_after = None
        """Bytes of a blob after which the connection is cut, once for each item."""
        self.drip_s = 0.0
        self.pause_s = 0.0
        """Seconds to sleep before each 64 KiB of a blob."""
        self.ranges = True
        self.spoil = lambda digest, data: data
        self.length = None
        """A function that gives the Content-Length of a blob by its true one. None: leave it out."""
        self.extra = b""
        self.lies_about_configs = False
        """Whether `length` and `extra` hold for configs too, not only for layers."""
        self._server = ThreadingHTTPServer((address, 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def port(self):
        return self._server.server_address[1]

    @property
    def host(self):
        return f"{self.address}:{self.port}"

    def tag(self, name, descriptor):
        repository, _, tag = name.partition(":")
        self.tags[repository, tag or "latest"] = descriptor["digest"]
        return f"{self.host}/{name}"

    def paths(self, word=""):
        return [path for path, _ in self.seen if word in path]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def _handler(registry):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *words):
                pass

            def do_POST(self):
                self.body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self.do_GET()

            def do_GET(self):
                with contextlib.suppress(ConnectionError):
                    registry.answer(self)

        return Handler

    def answer(self, request):
        path = urlsplit(request.path)
        self.seen.append((request.path, dict(request.headers)))
        if self.answers:
            status, headers = self.answers.pop(0)
            return self._send(request, status, b"", headers)
        if path.path == "/token":
            return self._token(request, parse_qs(path.query))
        if (
            self.token
            and request.headers.get("Authorization") != f"Bearer {self.token}"
            and path.path.startswith("/v2/")
        ):
            realm = self.service_realm or f"http://{self.host}/token"
            challenge = f'Bearer realm="{realm}",service="test",scope="repository:x:pull"'
            return self._send(request, 401, b"{}", {"WWW-Authenticate": challenge})
        words = path.path.split("/")
        kind, name = words[-2], words[-1]
        repository = "/".join(words[2:-2])
        if kind == "manifests":
            digest = self.tags.get((repository, name), name)
            if digest not in self.data:
                error = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest \x1b[31munknown"}]}
                return self._send(request, 404, json.dumps(error).encode(), {})
            data = self.spoil(digest, self.data[digest])
            return self._send(request, 200, data, {"Content-Type": self.types[digest]})
        if name not in self.data:
            return self._send(request, 404, b"", {})
        if self.redirect and (location := self.redirect(request.path)):
            return self._send(request, 307, b"", {"Location": location})
        return self._blob(request, name)

    def _token(self, request, query):
        self.token_query = query
        wanted = self.password
        if wanted and request.headers.get("Authorization") != wanted and wanted not in getattr(request, "body", ""):
            return self._send(request, 401, b"{}", {})
        self._send(request, 200, json.dumps({"token": self.token, "expires_in": 300}).encode(), {})

    def _blob(self, request, digest):
        data = self.spoil(digest, self.data[digest])
        start, status, headers = 0, 200, {}
        asked = request.headers.get("Range")
        if asked and self.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(data):
                return self._send(request, 416, b"", {})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        is_layer = data[:1] != b"{"
        body = data[start:] + (self.extra if is_layer or self.lies_about_configs else b"")
        length = len(body)
        if self.length is not None and (is_layer or self.lies_about_configs):
            length = self.length(length)
        request.send_response(status)
        if length is not None:
            request.send_header("Content-Length", str(length))
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        most = self.cut_after.pop(0) if self.cut_after and len(body) > 2000 else len(body)
        sent = 0
        step = 1 if self.drip_s else 65536
        while sent < most:
            piece = body[sent : min(sent + step, most)]
            time.sleep(self.drip_s or self.pause_s)
            request.wfile.write(piece)
            sent += len(piece)
            self.served[digest] += len(piece)
        request.wfile.flush()
        if most < len(body):
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.connection.close()

    def _send(self, request, status, body, headers):
        request.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(body)
        request.close_connection = True
