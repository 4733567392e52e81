"""Carries out decisions: requests to the API, with as few of them as possible."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harena.errors import BoxError, HarenaError
from harena.kube import claims, names
from harena.kube.api import KubeError, path
from harena.kube.objects import Object, items, part
from harena.node.place import Trust
from harena.operator import decide, tasks
from harena.operator.keys import PoolKeys
from harena.operator.pods import make_pod, network_policy, owner_of
from harena.operator.views import PoolView, task_view, when
from harena.sessions.engines.remote import RemoteEngine

if TYPE_CHECKING:
    from harena.operator.controller import Controller

STATUS_S = 2.0
"""How long the numbers of a pool may be old. A change that somebody waits for is written at once."""
EVENT_S = 60.0
"""Routine events of one object and reason are written once in this time."""
FLUSH_S = 1.0
"""How long Secrets of pods that are gone are collected before they are deleted together."""
LEFTOVER_S = 300.0
RETRY_S = 2.0
"""When a task is looked at again after it was run; it has ended by then, unless the cluster could not be reached."""
ROUTINE = ("AllReady", "Starting")
"""Reasons of a pool's status that are not problems."""

log = logging.getLogger("harena.operator")


@dataclass(slots=True)
class _PreparedPool:
    keys: PoolKeys
    generation: int


class Actions:
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._api = controller.api
        self._store = controller.store
        self._pools: dict[str, _PreparedPool] = {}
        self._refused: dict[str, str] = {}
        """Why the API refused the last pod of a pool."""
        self._unwritten: dict[str, float] = {}
        """When the status of a pool began to differ from what is written."""
        self._events: dict[tuple[str, str], float] = {}
        self._gone: dict[str, list[str]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}

    def runs(self, uid: str) -> bool:
        """Whether this process runs the task of that uid."""
        return uid in self._running

    async def act(self, kind: str, found: Object, actions: Sequence[decide.Action]) -> float | None:
        """Carry out a decision about an object. Returns when to look at it again."""
        again_s: float | None = None
        deletions: list[decide.DeletePod] = []
        for action in actions:
            if not self._controller.leader.leads:
                return None
            match action:
                case decide.DeletePod():
                    deletions.append(action)
                case decide.CreatePods():
                    again_s = await self._create_pods(found, action)
                case decide.SetPoolStatus():
                    again_s = await self._set_pool_status(found, action) or again_s
                case decide.SetFinalizer():
                    found = await self._set_finalizer(kind, found, action.present)
                case decide.ClaimPod():
                    await self._claim(found, action)
                case decide.CreatePodFor():
                    await self._create_for(found, action)
                case decide.SetSandboxStatus():
                    await self._set_sandbox_status(found, action)
                case decide.ProbePod():
                    await self._probe(found["metadata"]["namespace"], action.name)
                case decide.DeleteObject():
                    await self._delete_object(kind, found["metadata"])
                case decide.RunTask():
                    self._run_task(found, action.pod)
                case decide.FailTask():
                    status = tasks.failure(action.message, part(found, "status"))
                    await self._write_status("tasks", found, status)
        await asyncio.gather(*(self._delete(kind, found, one) for one in deletions))
        return again_s

    # ---- pods ----

    async def prepare(self, found: Object) -> tuple[PoolView, PoolKeys]:
        """The keys of a pool, which are made with the first of its pods; and its network policy."""
        pool = self._controller.pool(found)
        known = self._pools.get(pool.uid)
        if known is None:
            keys = await self._controller.ask(lambda: self._keys(pool))
            known = self._pools[pool.uid] = _PreparedPool(keys, -1)
        if known.generation != pool.generation:
            policy = network_policy(pool, part(found, "spec"))
            await self._controller.ask(lambda: self._apply_policy(policy))
            known.generation = pool.generation
        return pool, known.keys

    def _keys(self, pool: PoolView) -> PoolKeys:
        private, public = names.authority_secret(pool.name), names.clients_secret(pool.name)
        try:
            keys = PoolKeys.read(self._api.get(path(pool.namespace, "secrets", private)))
        except KubeError as error:
            if error.status != 404:
                raise
            keys = PoolKeys.create(pool.namespace, pool.name)
            self._api.create(path(pool.namespace, "secrets"), _secret(pool, private, keys.authority_data()))
        try:
            self._api.create(path(pool.namespace, "secrets"), _secret(pool, public, keys.client_data()))
        except KubeError as error:
            if error.status != 409:
                raise
            # Of an earlier pool of that name, perhaps: make it this one's.
            patch = {"data": keys.client_data(), "metadata": {"ownerReferences": [owner_of(pool)]}}
            self._api.patch(path(pool.namespace, "secrets", public), patch)
        return keys

    def _apply_policy(self, policy: Object) -> None:
        where = path(policy["metadata"]["namespace"], "networkpolicies")
        try:
            self._api.create(where, policy)
        except KubeError as error:
            if error.status != 409:
                raise
            self._api.replace(f"{where}/{policy['metadata']['name']}", policy)

    async def _create_pods(self, found: Object, action: decide.CreatePods) -> float | None:
        pool, keys = await self.prepare(found)
        made = await asyncio.gather(
            *(self._create_pod(pool, keys, found, None) for _ in range(action.count)), return_exceptions=True
        )
        errors = [one for one in made if isinstance(one, BaseException)]
        created = action.count - len(errors)
        if created:
            self._refused.pop(pool.uid, None)
            text = f"created {created} pods: {action.why}"
            await self.event("WarmPool", found, "Refill", text, routine=True)
        for error in errors:
            if not isinstance(error, HarenaError):
                raise error
            self._refused[pool.uid] = f"{error}"
            await self.event("WarmPool", found, "PodRefused", str(error), warning=True, routine=True)
            return decide.BACKOFF_S
        return None

    async def _create_pod(self, pool: PoolView, keys: PoolKeys, found: Object, sandbox: Object | None) -> Object:
        name = f"{pool.name[:45]}-{secrets.token_hex(5)}"
        image = self._controller.server_image
        body = make_pod(
            pool, part(found, "spec"), name, server_image=image, authority=keys.certificate, sandbox=sandbox
        )

        def create() -> Object:
            secret = _secret(pool, name, keys.pod_data(pool.namespace, name))
            secret["metadata"]["labels"] = {names.POOL: pool.name, names.POD: name}
            self._api.create(path(pool.namespace, "secrets"), secret)
            try:
                return self._api.create(path(pool.namespace, "pods"), body)
            except BaseException:
                self._api.delete(path(pool.namespace, "secrets", name))
                raise

        pod = await self._controller.ask(create)
        self._store.put("pods", pod)
        return pod

    async def _delete(self, kind: str, found: Object, action: decide.DeletePod) -> None:
        namespace = found["metadata"]["namespace"]
        await self._controller.ask(
            lambda: self._api.delete(path(namespace, "pods", action.name), grace_s=1, uid=action.uid)
        )
        log.info("deleted pod %s/%s: %s", namespace, action.name, action.why)
        pod = self._store.get("pods", namespace, action.name)
        if pod is not None and pod["metadata"].get("uid") == action.uid:
            # Until the watch says so: it is being deleted.
            pod["metadata"].setdefault("deletionTimestamp", _now())
        if not action.routine:
            text = f"deleted pod {action.name}: {action.why}"
            owner = {"warmpools": "WarmPool", "sandboxes": "Sandbox", "tasks": "Task"}.get(kind, "Pod")
            await self.event(owner, found, "PodDeleted", text, warning=True)

    def pod_gone(self, namespace: str, name: str) -> None:
        """Delete its Secret soon, together with those of others."""
        if not self._controller.leader.leads:
            return
        if not self._gone:
            asyncio.get_running_loop().call_later(FLUSH_S, self._flush_soon)
        self._gone.setdefault(namespace, []).append(name)

    def _flush_soon(self) -> None:
        gone, self._gone = self._gone, {}
        for namespace, listed in gone.items():
            for start in range(0, len(listed), 50):  # a selector is part of the URL
                selector = f"{names.POD} in ({','.join(listed[start : start + 50])})"
                where = path(namespace, "secrets")
                task = asyncio.ensure_future(
                    self._controller.ask(
                        lambda where=where, selector=selector: self._api.delete_all(where, labels=selector)
                    )
                )
                task.add_done_callback(_log_failure)

    async def sweep_secrets(self) -> None:
        """Delete Secrets whose pods are gone, of operators that were killed."""
        where = path(self._controller.namespace, "secrets")
        listed = await self._controller.ask(lambda: self._api.list(where, labels=names.POD))
        for secret in listed["items"]:
            meta = secret["metadata"]
            old = time.time() - when(meta.get("creationTimestamp")) > LEFTOVER_S
            if old and self._store.get("pods", meta["namespace"], meta["name"]) is None:
                await self._controller.ask(
                    lambda meta=meta: self._api.delete(
                        path(meta["namespace"], "secrets", meta["name"]), uid=meta["uid"]
                    )
                )

    async def _probe(self, namespace: str, name: str) -> None:
        """Delete a claimed pod that nobody uses. A server that was used ends by itself."""
        pod = self._store.get("pods", namespace, name)
        if pod is None:
            return
        uid = pod["metadata"]["uid"]
        self._controller.mark_probed(uid)
        engine = self.engine(pod)
        if engine is None:
            return
        try:
            used = await self._controller.ask(lambda: tasks.is_used(engine))
        except BoxError as error:
            log.info("pod %s/%s does not say whether it is used: %s", namespace, name, error)
            return
        if not used:
            action = decide.DeletePod(name, uid, "it was claimed, but nobody connected to it", routine=False)
            await self._delete("pods", pod, action)

    def engine(self, pod: Object) -> RemoteEngine | None:
        """Sessions of a pod's server; None if its pool is gone, or it has no address yet."""
        meta, address = pod["metadata"], part(pod, "status").get("podIP")
        found = self._store.get("warmpools", meta["namespace"], part(meta, "labels").get(names.POOL, ""))
        known = None if found is None else self._pools.get(found["metadata"]["uid"])
        if known is None or not address:
            return None
        trust = Trust(known.keys.certificate, names.server_name(meta["namespace"], meta["name"]))
        token = claims.pod_token(known.keys.key, meta["namespace"], meta["name"])
        return RemoteEngine(claims.url_of(address), token, trust)

    # ---- sandboxes ----

    async def _claim(self, sandbox: Object, action: decide.ClaimPod) -> None:
        """Take the first pod that nobody else has taken meanwhile. None: the next look creates a cold one."""
        meta = sandbox["metadata"]
        notes = {names.CLAIMED_AT: _now(), names.CLAIMED_BY: "harena-operator", names.SANDBOX_UID: meta["uid"]}
        for name in action.pods:
            where = path(meta["namespace"], "pods", name)
            patch = claims.claim_patch(sandbox["spec"]["poolRef"], meta["name"], notes)
            try:
                pod = await self._controller.ask(lambda where=where, patch=patch: self._api.patch(where, patch))
            except KubeError as error:
                if error.status == 404 or error.status in claims.TAKEN:
                    continue
                raise
            self._controller.observe("pods", "MODIFIED", pod)
            return
        self._controller.look("sandboxes", meta["namespace"], meta["name"], after_s=0.2)

    async def _create_for(self, sandbox: Object, action: decide.CreatePodFor) -> None:
        meta = sandbox["metadata"]
        found = self._store.get("warmpools", meta["namespace"], sandbox["spec"]["poolRef"])
        if found is None:
            return
        pool, keys = await self.prepare(found)
        await self._create_pod(pool, keys, found, sandbox)
        await self.event("Sandbox", sandbox, "ColdStart", action.why)

    async def _set_sandbox_status(self, found: Object, action: decide.SetSandboxStatus) -> None:
        before: Object = part(found, "status")
        status: Object = {
            "phase": action.phase,
            "conditions": [condition("Ready", action.phase == "Bound", action.reason, action.message, before)],
        }
        if action.pod:
            status |= {"podName": action.pod, "podIP": action.ip or before.get("podIP", "")}
        if action.phase == "Bound":
            status["allocatedAt"] = before.get("allocatedAt") or _now()
        if action.phase == "Released":
            status["releasedAt"] = before.get("releasedAt") or _now()
            await self.event("Sandbox", found, "Released", action.message)
        await self._write_status("sandboxes", found, status)

    # ---- pools ----

    async def _set_pool_status(self, found: Object, wanted: decide.SetPoolStatus) -> float | None:
        meta, before = found["metadata"], part(found, "status")
        reason, message = wanted.reason, wanted.message
        if meta["uid"] in self._refused and wanted.phase != "Ready":
            reason, message = "PodRefused", self._refused[meta["uid"]]
        status: Object = {
            "phase": wanted.phase,
            "ready": wanted.ready,
            "idle": wanted.idle,
            "allocated": wanted.allocated,
            "total": wanted.total,
            "observedGeneration": meta.get("generation", 0),
            "selector": f"{names.POOL}={meta['name']},{names.STATE}={names.IDLE}",
            "conditions": [condition("Ready", wanted.phase == "Ready", reason, message, before)],
        }
        if all(before.get(name) == value for name, value in status.items()):
            self._unwritten.pop(meta["uid"], None)
            return None
        known = next((one.get("reason") for one in items(before, "conditions")), None)
        urgent = (wanted.phase == "Ready" and before.get("phase") != "Ready") or (
            reason != known and reason not in ROUTINE
        )
        since = self._unwritten.setdefault(meta["uid"], time.monotonic())
        left = since + STATUS_S - time.monotonic()
        if before.get("phase") and not urgent and left > 0:
            return left
        self._unwritten.pop(meta["uid"], None)
        if reason != known and reason not in ROUTINE:
            await self.event("WarmPool", found, reason, message, warning=True, routine=True)
        await self._write_status("warmpools", found, status)
        return None

    # ---- tasks ----

    def _run_task(self, found: Object, pod_name: str) -> None:
        meta = found["metadata"]
        pod = self._store.get("pods", meta["namespace"], pod_name)
        uid = meta["uid"]
        task = asyncio.get_running_loop().create_task(self._run(found, pod))
        self._running[uid] = task

        def ended(task: asyncio.Task[None]) -> None:
            del self._running[uid]
            _log_failure(task)
            self._controller.look("tasks", meta["namespace"], meta["name"], after_s=RETRY_S)

        task.add_done_callback(ended)

    async def _run(self, found: Object, pod: Object | None) -> None:
        meta, view = found["metadata"], task_view(found)
        pool = (
            None
            if pod is None
            else self._store.get("warmpools", meta["namespace"], pod["metadata"]["labels"][names.POOL])
        )
        if pool is not None:
            await self.prepare(pool)
        engine = None if pod is None else self.engine(pod)
        if engine is None:
            await self._write_status("tasks", found, tasks.failure("the pod of the sandbox is gone", {}))
            return
        turn = self._turns.setdefault((meta["namespace"], view.sandbox), asyncio.Lock())
        async with turn:  # tasks of a sandbox run one after the other
            before: Object = part(found, "status")
            started = {"state": "Running", "startedAt": before.get("startedAt") or _now()}
            found = await self._write_status("tasks", found, started)
            session = await self._session(meta["namespace"], view.sandbox, engine)
            status = await asyncio.to_thread(tasks.run, engine, session, found)
            found = await self._write_status("tasks", found, status)
        text = f"{status['state']}: {status.get('message') or 'exit code 0'}"
        await self.event("Task", found, status["state"], text, warning=status["state"] == "Failed")

    async def _session(self, namespace: str, sandbox: str, engine: RemoteEngine) -> str:
        """The session of a sandbox, which is created with its first task and written down before it is used."""
        found = self._store.get("sandboxes", namespace, sandbox)
        if found is None:
            raise BoxError(f"sandbox {sandbox} is gone")
        known = part(found, "status").get("session")
        if known:
            return str(known)
        made = await asyncio.to_thread(tasks.create_session, engine)
        status = {"session": made["id"], "isolation": made.get("isolation")}
        await self._write_status("sandboxes", found, status)
        return str(made["id"])

    # ---- objects ----

    async def _set_finalizer(self, kind: str, found: Object, present: bool) -> Object:
        meta = found["metadata"]
        others = [one for one in items(meta, "finalizers") if one != names.FINALIZER]
        finalizers = [*others, names.FINALIZER] if present else others
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": meta["resourceVersion"]}}
        try:
            changed = await self._controller.ask(
                lambda: self._api.patch(path(meta["namespace"], kind, meta["name"]), patch)
            )
        except KubeError as error:
            if error.status == 404:
                return found
            raise
        self._store.put(kind, changed)
        return changed

    async def _delete_object(self, kind: str, meta: Object) -> None:
        where = path(meta["namespace"], kind, meta["name"])
        await self._controller.ask(lambda: self._api.delete(where, uid=meta["uid"]))

    async def _write_status(self, kind: str, found: Object, status: Object) -> Object:
        meta = found["metadata"]
        before = part(found, "status")
        if all(before.get(name) == value for name, value in status.items()):
            return found
        where = path(meta["namespace"], kind, meta["name"], "status")
        try:
            changed = await self._controller.ask(lambda: self._api.patch(where, {"status": status}))
        except KubeError as error:
            if error.status == 404:
                return found  # it was deleted
            raise
        self._controller.observe(kind, "MODIFIED", changed)
        return changed

    async def event(
        self, kind: str, found: Object, reason: str, text: str, *, warning: bool = False, routine: bool = False
    ) -> None:
        meta, now = found["metadata"], time.monotonic()
        log.info("%s %s/%s: %s: %s", kind, meta["namespace"], meta["name"], reason, text)
        last = self._events.get((meta["uid"], reason))
        if routine and last is not None and now - last < EVENT_S:
            return
        self._events[(meta["uid"], reason)] = now
        api = "v1" if kind == "Pod" else names.API_VERSION
        body: Object = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{meta['name'][:50]}-", "namespace": meta["namespace"]},
            "involvedObject": {
                "apiVersion": api,
                "kind": kind,
                "name": meta["name"],
                "namespace": meta["namespace"],
                "uid": meta["uid"],
            },
            "reason": reason,
            "message": text[:1000],
            "type": "Warning" if warning else "Normal",
            "source": {"component": "harena-operator"},
            "firstTimestamp": _now(),
            "lastTimestamp": _now(),
            "count": 1,
        }
        try:
            await self._controller.ask(lambda: self._api.create(path(meta["namespace"], "events"), body))
        except KubeError as error:
            log.warning("an event could not be written: %s", error)


def condition(kind: str, ok: bool, reason: str, message: str, before: Object) -> Object:
    """A condition, with the time of its last change. `before`: the status that it is to replace."""
    status, changed = "True" if ok else "False", _now()
    for one in items(before, "conditions"):
        if one.get("type") == kind and one.get("status") == status:
            changed = one.get("lastTransitionTime") or changed
    return {
        "type": kind,
        "status": status,
        "reason": reason or ("Ready" if ok else "Waiting"),
        "message": message or ("ready" if ok else "waiting"),
        "lastTransitionTime": changed,
    }


def _secret(pool: PoolView, name: str, data: dict[str, str]) -> Object:
    meta = {"name": name, "namespace": pool.namespace, "ownerReferences": [owner_of(pool)]}
    return {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta, "data": data}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _log_failure(task: asyncio.Future[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("%s: %s", type(error).__name__, error)
