"""Makes small wheels and source distributions, and serves them as a package index on loopback."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str], *, requires: tuple[str, ...] = ()
) -> Path:
    """A wheel for every Python. Names in `files` are taken as they are, also those that lead out of the folder."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    contents = {
        **files,
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in contents.items())
    contents[f"{info}/RECORD"] = record + f"{info}/RECORD,,\n"
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, text in contents.items():
            member = zipfile.ZipInfo(inside)
            member.external_attr = (0o100755 if "/scripts/" in inside else 0o100644) << 16
            archive.writestr(member, text)
    return path


def make_sdist(folder: Path, name: str, version: str, backend: str) -> Path:
    """A source distribution that is built by `backend`, Python source with a function `build_wheel`."""
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        "pyproject.toml": f'{system}[project]\nname = "{name}"\nversion = "{version}"\n',
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "backend.py": backend,
    }
    path = folder / f"{name}-{version}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for inside, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{inside}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


class _Handler(http.server.SimpleHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        parts = self.path.strip("/").split("/")
        if parts[0] == "simple" and len(parts) == 2:
            names = [path.name for path in Path(self.directory).iterdir()]
            fitting = [name for name in names if name.lower().replace("_", "-").startswith(f"{parts[1]}-")]
            page = "".join(f'<a href="/files/{name}">{name}</a>' for name in fitting).encode()
            self.send_response(200 if fitting else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
        elif parts[0] == "files":
            self.path = f"/{parts[-1]}"
            super().do_GET()
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve_index(folder: Path) -> Generator[tuple[str, list[str]]]:
    """Serve a folder of distributions. Yields the address of the index, and the paths that were asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
