"""Where the box's folders are, and a file server that finds the paths of the API there."""

from __future__ import annotations

import errno
import os
import stat

from ..files import FileServer, part_of
from .folders import weigh


class Places:
    """Where the box's folders are: what the API calls /workspace and /tmp."""

    def __init__(self, workspace, tmp):
        self.workspace, self.tmp = workspace, tmp

    def real(self, path):
        for shown, place in (("/workspace", self.workspace), ("/tmp", self.tmp)):
            if path == shown or path.startswith(shown + "/"):
                return place + path[len(shown) :]
        return path


def files_at(places, most):
    class MappedFiles(FileServer):
        """Finds the paths of the API in the box's folders. It has the guest's own rights, as ever."""

        weighed, since = {}, 0

        def make_room(self, path, size):
            """Refuses what would not fit. Counts again only when enough was written to matter."""
            self.since += size
            for top in (places.workspace, places.tmp):
                if not path.startswith(top + "/"):
                    continue
                known = self.weighed.get(top)
                if known is None or known + self.since > most or self.since > most >> 4:
                    self.weighed, self.since = {**self.weighed, top: weigh(top, most)}, size
                if self.weighed[top] + size > most:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

        def do_write(self, request, blob):
            try:
                self.make_room(request["path"], len(blob))
                return super().do_write(request, blob)
            except OSError:
                self.drop_part(request)
                raise

        def do_apply(self, request, blob):
            for path, *_, size in request["make"]:
                if size > 0:
                    self.make_room(path, size)
            return super().do_apply(request, blob)

        def drop_part(self, request):
            try:
                os.unlink(part_of(request["path"], request["token"]))
            except OSError:
                pass

        def handle(self, request, blob):
            if "path" in request:
                request["path"] = places.real(request["path"])
            for name in ("paths", "remove"):
                if isinstance(request.get(name), list):
                    request[name] = [places.real(path) for path in request[name]]
            if isinstance(request.get("make"), list):
                request["make"] = [[places.real(entry[0]), *entry[1:]] for entry in request["make"]]
            return super().handle(request, blob)

    return MappedFiles


class GuardedOs:
    """`os` for a file server that has the user of the host: Landlock does not restrict who changes modes and times, so
    the file is looked at first, by a descriptor that keeps it, and must be one of the box."""

    def __init__(self, base):
        self._base = base

    def __getattr__(self, name):
        return getattr(os, name)

    def _own(self, path):
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        if not os.readlink(f"/proc/self/fd/{fd}").startswith(self._base + "/"):
            os.close(fd)
            raise OSError(errno.EPERM, "not a file of the box", path)
        return fd

    def chmod(self, path, mode):
        fd = self._own(path)
        try:
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                raise OSError(errno.ELOOP, "a link has no mode", path)
            os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)

    def utime(self, path, ns, follow_symlinks=True):
        fd = self._own(path)
        try:
            os.utime(f"/proc/self/fd/{fd}", ns=ns)
        finally:
            os.close(fd)
