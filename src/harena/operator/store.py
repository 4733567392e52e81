"""What the operator has observed: the newest version of each object. Own writes are put in at once, so that a decision
never rests on what was there before them."""

from __future__ import annotations

from collections.abc import Iterator

from harena.kube import names
from harena.kube.objects import Object, part

KINDS = ("warmpools", "sandboxes", "tasks", "pods")
Key = tuple[str, str, str]
"""Kind, namespace and name."""


class ObjectCache:
    def __init__(self) -> None:
        self._objects: dict[str, dict[tuple[str, str], Object]] = {kind: {} for kind in KINDS}
        self._pods_of_pool: dict[tuple[str, str], set[str]] = {}
        self._gone: dict[str, None] = {}
        """Uids of deleted objects: an event that was on its way must not bring them back."""

    def put(self, kind: str, found: Object) -> bool:
        """Keep an object, unless a newer version of it is known. Returns whether it is new."""
        key, meta = _key(found), found["metadata"]
        known = self._objects[kind].get(key)
        if meta.get("uid") in self._gone:
            return False
        if known is not None and known["metadata"].get("uid") == meta.get("uid") and _version(found) <= _version(known):
            return False
        self._objects[kind][key] = found
        if kind == "pods":
            pool = part(meta, "labels").get(names.POOL, "")
            self._pods_of_pool.setdefault((key[0], pool), set()).add(key[1])
        return True

    def remove(self, kind: str, found: Object) -> None:
        key, uid = _key(found), found["metadata"].get("uid")
        known = self._objects[kind].get(key)
        if known is not None and known["metadata"].get("uid") == uid:
            del self._objects[kind][key]
            if kind == "pods":
                pool = part(known["metadata"], "labels").get(names.POOL, "")
                self._pods_of_pool.get((key[0], pool), set()).discard(key[1])
        if uid:
            self._gone[uid] = None
            while len(self._gone) > 10_000:
                del self._gone[next(iter(self._gone))]

    def replace(self, kind: str, listed: list[Object]) -> None:
        """Take over a fresh list of everything of a kind."""
        present = {found["metadata"].get("uid") for found in listed}
        for known in list(self._objects[kind].values()):
            if known["metadata"].get("uid") not in present:
                self.remove(kind, known)
        for found in listed:
            self.put(kind, found)

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._objects[kind].get((namespace, name))

    def all(self, kind: str, namespace: str | None = None) -> Iterator[Object]:
        for key, found in list(self._objects[kind].items()):
            if namespace is None or key[0] == namespace:
                yield found

    def pods(self, namespace: str, pool: str) -> list[Object]:
        listed = self._pods_of_pool.get((namespace, pool), ())
        return [self._objects["pods"][(namespace, name)] for name in sorted(listed)]


def _key(found: Object) -> tuple[str, str]:
    return found["metadata"].get("namespace") or "", found["metadata"]["name"]


def _version(found: Object) -> int:
    text = str(found["metadata"].get("resourceVersion") or "0")
    return int(text) if text.isdigit() else 0
