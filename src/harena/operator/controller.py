"""Observes objects, decides (`decide`) and acts. All state is changed on the event loop; requests run in threads.

Each pool, sandbox and task is looked at by one coroutine at a time. Nothing is done while another operator leads.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from harena.errors import BoxError, HarenaError
from harena.kube import names
from harena.kube.api import KubeApi, KubeError, path
from harena.kube.objects import Object, part
from harena.operator import decide
from harena.operator.actions import Actions
from harena.operator.leader import Leader
from harena.operator.pods import check_template
from harena.operator.store import KINDS, Key, ObjectCache
from harena.operator.views import PodView, PoolView, pod_view, pool_view, sandbox_view, task_view

REQUESTS = 16
"""Requests at once."""
RETRY_S = 2.0
SWEEP_S = 60.0
"""How often everything is looked at, in case an event was lost."""
T = TypeVar("T")

log = logging.getLogger("harena.operator")


class Controller:
    def __init__(self, api: KubeApi, leader: Leader, *, server_image: str, namespace: str | None = None) -> None:
        """`namespace`: the only one to look after; None: all."""
        self.api = api
        self.leader = leader
        self.server_image = server_image
        self.namespace = namespace
        self.store = ObjectCache()
        self._threads = ThreadPoolExecutor(REQUESTS, "harena-operator")
        self._actions = Actions(self)
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._probed: set[str] = set()
        self._synced = False
        self._stopping = threading.Event()

    # ---- observing ----

    def observe(self, kind: str, event: str | None, found: Object) -> None:
        """Take an event of a watch. To be called on the event loop."""
        if event == "DELETED":
            self.store.remove(kind, found)
        elif not self.store.put(kind, found):
            return
        meta = found["metadata"]
        self.look(kind, meta.get("namespace") or "", meta["name"])
        if kind == "pods":
            self._look_around_pod(meta)
            if event == "DELETED":
                self._actions.pod_gone(meta.get("namespace") or "", meta["name"])
        elif kind == "sandboxes":
            for task in self.store.all("tasks", meta["namespace"]):
                if part(task, "spec").get("sandboxRef") == meta["name"]:
                    self.look("tasks", meta["namespace"], task["metadata"]["name"])
        elif kind == "tasks":
            self.look("sandboxes", meta["namespace"], str(part(found, "spec").get("sandboxRef")))
        elif kind == "warmpools":
            for sandbox in self.store.all("sandboxes", meta["namespace"]):
                if part(sandbox, "spec").get("poolRef") == meta["name"]:
                    self.look("sandboxes", meta["namespace"], sandbox["metadata"]["name"])

    def _look_around_pod(self, meta: Object) -> None:
        labels = part(meta, "labels")
        self.look("warmpools", meta["namespace"], labels.get(names.POOL, ""))
        if labels.get(names.SANDBOX):
            self.look("sandboxes", meta["namespace"], labels[names.SANDBOX])

    def look(self, kind: str, namespace: str, name: str, after_s: float = 0.0) -> None:
        """Decide about an object soon."""
        key = kind, namespace, name
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if after_s > 0:
            loop = asyncio.get_running_loop()
            self._timers[key] = loop.call_later(after_s, self.look, kind, namespace, name)
        elif key in self._tasks:
            self._again.add(key)
        elif self._synced and self.leader.leads:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._work(key))

    async def _work(self, key: Key) -> None:
        try:
            while True:
                self._again.discard(key)
                try:
                    again_s = await self._reconcile(*key)
                except BoxError as error:
                    log.warning("%s %s/%s: %s", *key, error)
                    again_s = RETRY_S
                except Exception:
                    log.exception("%s %s/%s: a mistake of the operator", *key)
                    again_s = 10 * RETRY_S
                if key not in self._again or not self.leader.leads:
                    break
        finally:
            del self._tasks[key]
        if again_s is not None:
            self.look(*key, after_s=again_s)

    # ---- leading ----

    async def start(self) -> None:
        """Read everything, then act. Called when this operator begins to lead."""
        versions: dict[str, str] = {}
        for kind in KINDS:
            listed = await self.ask(lambda kind=kind: self.api.list(path(self.namespace, kind), labels=_labels(kind)))
            versions[kind] = str(listed["metadata"]["resourceVersion"])
            self.store.replace(kind, listed["items"])
        self._synced = True
        self.look_at_all()

    def stop(self) -> None:
        """Another one may lead."""
        self._synced = False

    def look_at_all(self) -> None:
        for kind in KINDS:
            for found in self.store.all(kind):
                self.look(kind, found["metadata"].get("namespace") or "", found["metadata"]["name"])

    async def sweep(self) -> None:
        """Look at everything now and then, and remove what was left behind."""
        while True:
            await asyncio.sleep(SWEEP_S)
            if self._synced and self.leader.leads:
                self.look_at_all()
                try:
                    await self._actions.sweep_secrets()
                except HarenaError as error:
                    log.warning("Secrets of pods that are gone could not be removed: %s", error)

    def watch_pods(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch our pods until the end of the process. Runs in a thread: kopf would watch all pods of the cluster."""
        where = path(self.namespace, "pods")
        while not self._stopping.is_set():
            try:
                listed = self.api.list(where, labels=names.POOL)
                loop.call_soon_threadsafe(self._take_pods, listed["items"])
                version = str(listed["metadata"]["resourceVersion"])
                while not self._stopping.is_set():
                    for kind, found in self.api.watch(where, version, labels=names.POOL):
                        version = str(found["metadata"]["resourceVersion"])
                        if kind != "BOOKMARK":
                            loop.call_soon_threadsafe(self.observe, "pods", kind, found)
            except KubeError as error:
                if error.status != 410:
                    log.warning("the watch of pods ended: %s", error)
                self._stopping.wait(RETRY_S)
            except RuntimeError:
                return  # the loop has ended

    def _take_pods(self, listed: list[Object]) -> None:
        present = {found["metadata"].get("uid") for found in listed}
        for known in list(self.store.all("pods")):
            if known["metadata"].get("uid") not in present:
                self.observe("pods", "DELETED", known)
        for found in listed:
            self.observe("pods", "ADDED", found)

    def close(self) -> None:
        self._stopping.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, call: Callable[[], T]) -> T:
        """Make a request in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    # ---- deciding ----

    async def _reconcile(self, kind: str, namespace: str, name: str) -> float | None:
        if not self.leader.leads:
            return None
        now = time.time()
        found = self.store.get(kind, namespace, name)
        if kind == "pods":
            return await self._reconcile_pod(namespace, found, now)
        if found is None:
            return None
        if kind == "warmpools":
            decision = decide.decide_pool(self.pool(found), self.pods(namespace, name), now)
        elif kind == "sandboxes":
            sandbox = sandbox_view(found)
            pool = self.store.get("warmpools", namespace, sandbox.pool)
            tasks = [task for task in map(task_view, self.store.all("tasks", namespace)) if task.sandbox == name]
            pods = self.pods(namespace, sandbox.pool)
            decision = decide.decide_sandbox(sandbox, None if pool is None else self.pool(pool), pods, tasks, now)
        else:
            task = task_view(found)
            sandbox_found = self.store.get("sandboxes", namespace, task.sandbox)
            view = None if sandbox_found is None else sandbox_view(sandbox_found)
            decision = decide.decide_task(task, view, self._actions.runs(task.uid), now)
        return soonest(await self._actions.act(kind, found, decision.actions), decision.again_s)

    async def _reconcile_pod(self, namespace: str, pod: Object | None, now: float) -> float | None:
        """Only pods without a pool; those with one are looked at with it."""
        if pod is None:
            return None
        view = self.view(pod)
        if self.store.get("warmpools", namespace, view.pool) is not None:
            return None
        decision = decide.decide_orphan(view, now)
        await self._actions.act("pods", pod, decision.actions)
        return decision.again_s

    def pool(self, found: Object) -> PoolView:
        return pool_view(found, self.server_image, check_template(part(found, "spec")))

    def pods(self, namespace: str, pool: str) -> list[PodView]:
        return [self.view(pod) for pod in self.store.pods(namespace, pool)]

    def view(self, pod: Object) -> PodView:
        """The view of a pod. One whose Sandbox object is gone counts as claimed by a client that may be gone too."""
        view = pod_view(pod)
        sandbox = self.store.get("sandboxes", pod["metadata"]["namespace"], view.sandbox) if view.sandbox else None
        owned = sandbox is not None and sandbox["metadata"].get("uid") == view.sandbox_uid
        uid = view.sandbox_uid if owned else ""
        return dataclasses.replace(view, sandbox_uid=uid, probed=view.uid in self._probed)

    def mark_probed(self, uid: str) -> None:
        self._probed.add(uid)


def _labels(kind: str) -> str:
    return names.POOL if kind == "pods" else ""


def soonest(*times: float | None) -> float | None:
    return min((one for one in times if one is not None), default=None)
