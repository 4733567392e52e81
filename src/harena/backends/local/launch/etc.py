"""Contents of /etc in a box that uses the host's /usr: generated files, and files of the host that software looks for
and that say nothing about the host. Never accounts, keys, tokens, addresses, names or the time zone of the host."""

from __future__ import annotations

import functools
import glob
import os
import stat

PASSWD = "root:x:0:0::/:/sbin/nologin\nbox:x:1000:1000::/workspace:/bin/sh\nnobody:x:65534:65534::/:/sbin/nologin\n"
GROUP = "root:x:0:\nbox:x:1000:\nnogroup:x:65534:\n"
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\nrpc: files\n"
OPENSSL = """[ req ]
distinguished_name = req_distinguished_name
x509_extensions = v3_ca
[ req_distinguished_name ]
[ v3_ca ]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always,issuer
basicConstraints = critical,CA:true
"""
UTC = "/usr/share/zoneinfo/Etc/UTC"
"""Every box uses UTC, so that output of programs does not depend on the host's location or reveal it."""

SHOWN = (
    "alternatives",
    "debian_version",
    "fonts",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d/*.conf",
    "lsb-release",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/java",
    "pki/tls/cert.pem",
    "pki/tls/certs/ca-bundle.crt",
    "protocols",
    "redhat-release",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/certs/ca-certificates.crt",
    "ssl/certs/java/cacerts",
    "terminfo/?",
)
"""Files of the host's /etc that boxes see. Only bundles of public certificates are shown, not their folder, which may
hold private ones. Files that may contain a password or a token are left out: environment, gitconfig, npmrc,
openssl.cnf, pip.conf, profile."""
MAX_ENTRIES = 5000
MAX_COPIED = 100_000


RESOLV = "nameserver 127.0.0.1\noptions timeout:5 attempts:2\n"
"""The host answers there for a box with a network: harena.network."""


def identity(hostname: str, *, network: bool) -> list[str]:
    """Plan words for the files that identify the box and its user, also in a rootfs."""
    hosts = f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {hostname}\n"
    words = ["file", "/etc/passwd", PASSWD, "file", "/etc/group", GROUP, "file", "/etc/hosts", hosts]
    return [*words, "file", "/etc/resolv.conf", RESOLV] if network else words


def system() -> list[str]:
    """Plan words for the rest of /etc."""
    words = ["file", "/etc/nsswitch.conf", NSSWITCH, "file", "/etc/ssl/openssl.cnf", OPENSSL]
    if os.access(UTC, os.R_OK):
        words += ["link", UTC, "/etc/localtime", "file", "/etc/timezone", "Etc/UTC\n"]
    if os.path.isdir("/etc/chromium.d"):
        words += ["file", "/etc/chromium.d/default-flags", ""]  # Debian's starter wants a file there
    copies, binds = _harmless()
    words += copies
    for source, target in binds:
        if os.access(source, os.F_OK):  # a package may have gone since
            words += ["bind", source, target, "ro"]
    return words


@functools.cache
def _harmless() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """What of SHOWN is here: the words that copy what is small, which takes the launcher a fifth of a mount; for the
    rest, where it really is and where the box sees it."""
    copies: list[str] = []
    binds: list[tuple[str, str]] = []
    for place in sorted(place for pattern in SHOWN for place in glob.glob(f"/etc/{pattern}")):
        source = os.path.realpath(place)
        if not is_public(source):
            continue
        if text := _small_text(source):
            copies += ["file", place, text]
        else:
            binds.append((source, place))
    return tuple(copies), tuple(binds)


def _small_text(path: str) -> str | None:
    if not os.path.isfile(path) or os.path.getsize(path) > MAX_COPIED:
        return None
    with open(path, "rb") as file:
        data = file.read(MAX_COPIED + 1)
    return None if b"\0" in data or len(data) > MAX_COPIED else os.fsdecode(data)


def is_public(path: str) -> bool:
    """Whether a path belongs to root and everybody may read it and everything below it. A box of an ordinary user has
    this user's rights, and must not see more than others do. Links may lead only to what the box shows."""
    way = os.path.dirname(path)
    while way != "/":
        if not os.stat(way).st_mode & stat.S_IXOTH:
            return False
        way = os.path.dirname(way)
    todo, seen = [path], 0
    while todo:
        path = todo.pop()
        seen += 1
        try:
            info = os.lstat(path)
            folder = stat.S_ISDIR(info.st_mode)
            need = stat.S_IROTH | stat.S_IXOTH if folder else stat.S_IROTH
            if info.st_uid != 0 or info.st_mode & need != need or not (folder or stat.S_ISREG(info.st_mode)):
                return False
            if folder:
                todo += [entry.path for entry in os.scandir(path) if not entry.is_symlink()]
        except OSError:
            return False
        if seen > MAX_ENTRIES:
            return False
    return True
