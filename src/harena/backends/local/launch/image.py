"""Root of a box from an OCI image: which layers, ids, user and environment it has, and the plan that builds it.

The box's own root, where its init and its warm Python live, holds nothing of the image. The image is mounted below it,
and executions enter it. The files that the box adds to the image (hosts, resolv.conf, mount points) are its topmost
layer, so links in the image cannot lead them elsewhere.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from harena.backends.local import wire
from harena.backends.local.launch import etc
from harena.errors import IsolationUnavailable, SpecError
from harena.sandbox.spec import MB, WORKSPACE, Spec

if TYPE_CHECKING:
    from harena.images.manifest import ImageConfig
    from harena.images.unpack.ids import IdMap, Ids

ROOT = "/.harena/root"
"""Where the box's own root has the image."""
LAYERS = "/.harena/layers"
IDS_FIRST, GUEST_ID = 100_000, 1000
"""Number of a job's root, and of init, in the box's user namespace (native/harena.h)."""
MAX_LAYERS = 500
"""The kernel's limit for an overlay, minus the box's own layer."""
MAX_PASSWD = 4 * MB
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOUNT_POINTS = (("proc", "555"), ("dev", "755"), ("tmp", "1777"), ("workspace", "755"), (".harena", "755"))
CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETFCAP": 31,
}
"""What root in a box may do with the files and processes of its own user namespace. Everything that reaches further
(mounts, network, devices, tracing) is missing."""
OF_ONE_ID = ("DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETFCAP")
"""Capabilities where there is one id: there is nobody to become and nothing to give away."""


@dataclass(frozen=True, slots=True)
class User:
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = "/"


@dataclass(frozen=True)
class Root:
    """A leased image, ready to be planned."""

    layers: tuple[str, ...]
    """Folders of the host, the lowest first."""
    ids: Ids
    user: User
    env: Mapping[str, str]
    cwd: str
    shell: tuple[str, ...] = ()
    """Command with which the image runs lines of a shell (SHELL of its Dockerfile)."""
    is_build: bool = False
    """/tmp and /workspace are folders of the image, and not of the box."""
    leases: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Keeps the layers from being removed while the box lives."""

    @property
    def full(self) -> bool:
        return self.ids.kind == "full"

    def close(self) -> None:
        self.leases.close()


@functools.cache
def kind_of_ids() -> str:
    """What this host gives to boxes from images: full or single."""
    from harena.images.unpack.ids import Ids

    return Ids.of_host().kind


def resolve(spec: Spec) -> Root:
    """Find the image of a spec, or pull it if the spec allows that, and take a lease on its layers."""
    from harena.images import ImageNotFound, ImageStore

    assert spec.image is not None
    store = ImageStore.default()
    with contextlib.ExitStack() as stack:
        image = store.find(spec.image)
        if image is None and not spec.pull:
            raise ImageNotFound(f"{spec.image} is not in the image store: run `harena image pull {spec.image}`")
        image = image or store.pull(spec.image)
        lease = stack.enter_context(image.lease())
        root = make(spec, lease.layers, store.layers.ids, image.config)
        root.leases.push(stack.pop_all())
    return root


def make(spec: Spec, layers: Sequence[str], ids: Ids, config: ImageConfig) -> Root:
    """Raises SpecError for what the image does not have, and IsolationUnavailable for what the host does not grant."""
    if spec.ids == "full" and ids.kind != "full":
        raise IsolationUnavailable(
            "this host gives a box only one user id, and the spec demands all (ids='full')",
            fix="run as root, or install uidmap and add ranges to /etc/subuid and /etc/subgid",
        )
    if not layers or len(layers) > MAX_LAYERS:
        raise SpecError(f"image {spec.image}: {len(layers)} layers, and a box can have 1 to {MAX_LAYERS}")
    user = find_user(layers, spec.user if spec.user is not None else config.user)
    if ids.kind == "full" and max(user.uid, user.gid, *user.groups, 0) >= ids.count:
        raise SpecError(f"image {spec.image}: user {user.uid}:{user.gid} is above the {ids.count} ids of a box")
    env = {"PATH": PATH, "HOME": user.home, "LANG": "C.UTF-8", **dict(config.env), **spec.env}
    named = config.cwd.startswith("/") and os.path.normpath(config.cwd) != "/"
    return Root(tuple(layers), ids, user, env, config.cwd if named else WORKSPACE, config.shell)


# ---- users ----


def find_user(layers: Sequence[str], wanted: str) -> User:
    """The user that an image names: "", name, number, name:group or number:number."""
    name, _, group = wanted.partition(":")
    users = [line.split(":") for line in _read(layers, "etc/passwd")]
    groups = [line.split(":") for line in _read(layers, "etc/group")]
    users = [entry for entry in users if len(entry) >= 7 and _is_id(entry[2]) and _is_id(entry[3])]
    groups = [entry for entry in groups if len(entry) >= 4 and _is_id(entry[2])]
    name = name or "0"
    entry = next((entry for entry in users if entry[0] == name or (_is_id(name) and int(entry[2]) == int(name))), None)
    if entry is None and not _is_id(name):
        raise SpecError(f"user {name[:80]!r}: the image's /etc/passwd has no such user")
    uid = int(entry[2]) if entry else int(name)
    gid = int(entry[3]) if entry else 0
    further: tuple[int, ...] = ()
    if group:
        found = next((item for item in groups if item[0] == group), None)
        if found is None and not _is_id(group):
            raise SpecError(f"group {group[:80]!r}: the image's /etc/group has no such group")
        gid = int(found[2]) if found else int(group)
    elif entry is not None:
        further = tuple(int(item[2]) for item in groups if entry[0] in item[3].split(","))[:32]
    home = entry[5] if entry and entry[5].startswith("/") and "\0" not in entry[5] else "/"
    return User(uid, gid, further, home)


def _is_id(text: str) -> bool:
    """Whether a text, which the image may have written, is the number of a user or a group."""
    return bool(re.fullmatch(r"[0-9]{1,10}", text)) and int(text) < 1 << 31


def _read(layers: Sequence[str], path: str) -> list[str]:
    """Lines of a file of the image. The image is untrusted: no link is followed."""
    folder, name = os.path.split(path)
    for layer in reversed(layers):
        try:
            above = os.open(layer, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            finally:
                os.close(above)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=parent)
        except FileNotFoundError:
            continue
        except OSError:
            return []  # a link or a whiteout
        finally:
            os.close(parent)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return []
            return file.read(MAX_PASSWD).decode("utf-8", "replace").splitlines()
    return []


# ---- the plan ----


def words(root: Root, spec: Spec, *, uid: int | None) -> list[str]:
    """Plan words that mount the image. `uid` is the host's user of the box's init, where root is the host."""
    own = f"{LAYERS}/{len(root.layers)}"
    words: list[str] = []
    for number, layer in enumerate(root.layers):
        words += ["bind", layer, f"{LAYERS}/{number}", "layer"]
    hosts = f"127.0.0.1 localhost\n::1 localhost\n127.0.1.1 {spec.hostname}\n"
    for name, mode in MOUNT_POINTS:
        if root.is_build and name in ("tmp", "workspace"):
            continue
        words += ["dir", f"{own}/{name}", mode]
    words += ["file", f"{own}/etc/hosts", hosts, "file", f"{own}/etc/hostname", f"{spec.hostname}\n"]
    words += ["file", f"{own}/etc/resolv.conf", "" if spec.network is None else etc.RESOLV]
    if not root.full and any(os.path.isdir(f"{layer}/etc/apt/apt.conf.d") for layer in root.layers):
        # apt drops to its own user, and checks that it has.
        words += ["file", f"{own}/etc/apt/apt.conf.d/99-harena-one-id", 'APT::Sandbox::User "root";\n']
    size = f"size={spec.root_mb * MB},nr_inodes={max(16384, spec.root_mb * 128)}"
    return [*words, "image", str(len(root.layers) + 1), f"{size},mode=755"]


def maps(root: Root, *, uid: int | None) -> list[str]:
    """Plan words for the users and groups of the box's namespace: init's own, and those of the image."""
    if not root.full:
        return []
    words: list[str] = []
    for kind, lines in (("uid", root.ids.uids), ("gid", root.ids.gids)):
        text = "" if uid is None else f"{GUEST_ID} {uid} 1\n"
        words += ["map", kind, text + _shifted(lines)]
        if root.ids.helpers:
            program = shutil.which(f"new{kind}map")
            if program is None:
                raise IsolationUnavailable(f"new{kind}map is not installed", fix="install the package uidmap")
            words += ["helper", kind, program]
    return words


def _shifted(lines: Sequence[IdMap]) -> str:
    return "".join(f"{IDS_FIRST + line.inside} {line.outside} {line.count}\n" for line in lines)


def owner_options(root: Root) -> str:
    """Options of a tmpfs that belongs to the guest's user, as numbers of the box's namespace."""
    if not root.full:
        return f"uid={GUEST_ID},gid={GUEST_ID}"
    return f"uid={IDS_FIRST + root.user.uid},gid={IDS_FIRST + root.user.gid}"


def capabilities(root: Root, spec: Spec) -> int:
    """Bits of the capabilities that guests keep. A writable mount shows files of the host, on which no guest may put a
    capability."""
    if root.user.uid != 0:
        return 0
    names = set(CAPABILITIES if root.full else OF_ONE_ID)
    if has_writable_mounts(spec):
        names -= {"SETFCAP", "FSETID"}
    return sum(1 << CAPABILITIES[name] for name in names)


def has_writable_mounts(spec: Spec) -> bool:
    return any(mount.writable for mount in spec.mounts)


def settings(root: Root, spec: Spec, python: Sequence[str] = ()) -> bytes:
    """The end of a box's configuration: see native/image.c. `python` is the command that starts the image's Python,
    once one was found."""
    env = [f"{name}={value}" for name, value in root.env.items()] if python else []
    fixed = wire.IMAGE.pack(
        root.full,
        root.user.uid,
        root.user.gid,
        len(root.layers) + 1,
        len(python),
        len(env),
        capabilities(root, spec),
        spec.root_mb * MB,
    )
    if root.full:
        # One line for each of the box's: the kernel maps no range that is two ranges above.
        uids, gids = (
            "".join(f"{line.inside} {IDS_FIRST + line.inside} {line.count}\n" for line in lines)
            for lines in (root.ids.uids, root.ids.gids)
        )
    else:
        uids, gids = f"{root.user.uid} {GUEST_ID} 1", f"{root.user.gid} {GUEST_ID} 1"
    mounted = ["/dev", "/.harena", *(mount.target for mount in spec.mounts)]
    words = [uids, gids, " ".join(map(str, root.user.groups)), root.cwd, *python, *env, *mounted, ""]
    return fixed + b"".join(os.fsencode(word) + b"\0" for word in words)
