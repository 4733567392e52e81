"""Pods of a pool: what runs in them, and what they may do.

A template is written by users, and pods are created with the operator's rights. So only the fields named here are taken
over, everything else is refused by name: a template can choose where and on what a pod runs, never what it may do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from harena.errors import SpecError
from harena.kube import claims, names
from harena.kube.objects import Object, items
from harena.operator.views import IDLE_SECONDS, LIFETIME_SECONDS, PoolView

SIDECAR, EXECUTOR = "sidecar", "executor"
"""Containers of a pod: the server, and the image that boxes have, if the pool names one."""
USER = 10001
KEYS, TMP, SHARED = "/run/harena", "/tmp", "/.harena"
DISK_MB = 256
CPU, MEMORY = "1", "1Gi"
REQUEST_CPU, REQUEST_MEMORY = "50m", "96Mi"

POD_FIELDS = {
    "affinity",
    "containers",
    "hostUsers",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    "securityContext",
    "tolerations",
    "topologySpreadConstraints",
}
CONTAINER_FIELDS = {"name", "image", "imagePullPolicy", "env", "resources", "securityContext"}
ENV_FIELDS = {"name", "value"}
POD_SECURITY = {"runAsUser", "runAsGroup", "seccompProfile"}
CONTAINER_SECURITY = {"seccompProfile", "procMount", "appArmorProfile"}


def check_template(spec: Object) -> str:
    """Why no pod can be made from the spec of a pool; empty if one can."""
    try:
        _parts(spec)
    except SpecError as error:
        return str(error)
    return ""


def make_pod(
    pool: PoolView, spec: Object, name: str, *, server_image: str, authority: str, sandbox: Object | None = None
) -> Object:
    """Return the pod. `sandbox`: the Sandbox that it belongs to from the beginning."""
    template, pod_spec, containers = _parts(spec)
    meta = _object(template.get("metadata"))
    labels = {**_foreign(meta.get("labels")), names.POOL: pool.name, names.REVISION: pool.revision}
    lifetime = int(spec.get("lifetimeSeconds") or LIFETIME_SECONDS)
    notes = {
        **_foreign(meta.get("annotations")),
        names.LIFETIME: str(lifetime),
        names.BOXES: str(int(spec.get("boxesPerPod") or 1)),
        names.AUTHORITY_DIGEST: claims.authority_digest(authority),
    }
    labels[names.STATE] = names.IDLE if sandbox is None else names.ALLOCATED
    if sandbox is not None:
        labels[names.SANDBOX] = sandbox["metadata"]["name"]
        notes[names.SANDBOX_UID] = sandbox["metadata"]["uid"]
    passed = {key: value for key, value in pod_spec.items() if key not in ("containers", "securityContext")}
    volumes: list[Object] = [
        {"name": "keys", "secret": {"secretName": name, "defaultMode": 0o400}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_disk_mb(spec)}Mi"}},
    ]
    if EXECUTOR in containers:
        volumes += [{"name": "shared", "emptyDir": {}}, {"name": "executor-tmp", "emptyDir": volumes[1]["emptyDir"]}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": pool.namespace, "labels": labels, "annotations": notes},
        "spec": {
            **passed,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 5,
            "securityContext": _pod_security(_object(pod_spec.get("securityContext"))),
            "initContainers": [_tools(containers, server_image)] if EXECUTOR in containers else [],
            "containers": _containers(spec, containers, server_image),
            "volumes": volumes,
        },
    }


def network_policy(pool: PoolView, spec: Object) -> Object:
    """Default deny for the pods of a pool. Clients reach the server's port; nothing is reached from the pods."""
    clients = items(spec, "clients") or [{"podSelector": {}}]
    operator = {
        "namespaceSelector": {},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "harena-operator"}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"harena-{pool.name}", "namespace": pool.namespace, "ownerReferences": [owner_of(pool)]},
        "spec": {
            "podSelector": {"matchLabels": {names.POOL: pool.name}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [*clients, operator], "ports": [{"protocol": "TCP", "port": names.PORT}]}],
            "egress": spec.get("egress") or [],
        },
    }


def owner_of(pool: PoolView) -> Object:
    return {"apiVersion": names.API_VERSION, "kind": "WarmPool", "name": pool.name, "uid": pool.uid}


# ---- containers ----


def _containers(spec: Object, given: dict[str, Object], server_image: str) -> list[Object]:
    server = given.get(SIDECAR, {})
    isolation = str(spec.get("isolation") or "best")
    arguments = [
        "serve",
        f"--listen=0.0.0.0:{names.PORT}",
        f"--token-file={KEYS}/tokens",
        f"--tls-cert={KEYS}/tls.crt",
        f"--tls-key={KEYS}/tls.key",
        f"--isolation={'full' if isolation == 'full' else 'restricted'}",
        f"--end-idle={int(spec.get('idleSeconds') or IDLE_SECONDS)}",
        "--max-boxes=1000",
    ]
    mounts = [_mount("keys", KEYS, read_only=True), _mount("tmp", TMP)]
    if EXECUTOR in given:
        arguments.append(f"--executor={SHARED}/socket")
        mounts.append(_mount("shared", SHARED))
    sidecar = _container(SIDECAR, server, str(server.get("image") or server_image), isolation, mounts)
    sidecar["args"] = arguments
    sidecar["ports"] = [{"name": "boxes", "containerPort": names.PORT}]
    sidecar["readinessProbe"] = {"tcpSocket": {"port": names.PORT}, "periodSeconds": 1, "failureThreshold": 3}
    if EXECUTOR not in given:
        return [sidecar]
    image = given[EXECUTOR]
    mounts = [_mount("shared", SHARED, read_only=True), _mount("executor-tmp", TMP)]
    executor = _container(EXECUTOR, image, str(image["image"]), isolation, mounts)
    executor["command"] = [
        "python3",
        "-I",
        "-B",
        "-X",
        "utf8",
        f"{SHARED}/package/harena/backends/docker/inside.py",
        "--wait",
    ]
    return [sidecar, executor]


def _tools(given: dict[str, Object], server_image: str) -> Object:
    """Lay out the code of the node, which the executor's own Python runs."""
    server = given.get(SIDECAR, {})
    made = _container("tools", server, str(server.get("image") or server_image), "best", [_mount("shared", SHARED)])
    made["args"] = ["operator", "lay-out", f"{SHARED}/package"]
    return made


def _container(name: str, given: Object, image: str, isolation: str, mounts: list[Object]) -> Object:
    resources = _object(given.get("resources"))
    limits = {"cpu": CPU, "memory": MEMORY, **_object(resources.get("limits"))}
    requests = {"cpu": REQUEST_CPU, "memory": REQUEST_MEMORY, **_object(resources.get("requests"))}
    made: Object = {
        "name": name,
        "image": image,
        "env": [*items(given, "env"), {"name": "HARENA_ISOLATION", "value": isolation}],
        "resources": {"limits": limits, "requests": requests},
        "securityContext": {
            **_object(given.get("securityContext")),
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    if given.get("imagePullPolicy"):
        made["imagePullPolicy"] = given["imagePullPolicy"]
    return made


def _mount(name: str, path: str, *, read_only: bool = False) -> Object:
    return {"name": name, "mountPath": path, "readOnly": read_only}


def _pod_security(given: Object) -> Object:
    user = int(given.get("runAsUser") or USER)
    group = int(given.get("runAsGroup") or user)
    return {
        "seccompProfile": {"type": "RuntimeDefault"},
        **given,
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": group,
        "fsGroup": group,
    }


# ---- what users wrote ----


def _parts(spec: Object) -> tuple[Object, Object, dict[str, Object]]:
    """The template, its pod spec and its containers by name, all checked."""
    template = _object(spec.get("template"), "template")
    _closed("template", template, {"metadata", "spec"})
    pod = _object(template.get("spec"), "template.spec")
    _closed("template.spec", pod, POD_FIELDS)
    security = _object(pod.get("securityContext"), "template.spec.securityContext")
    _closed("template.spec.securityContext", security, POD_SECURITY)
    if security.get("runAsUser") == 0 or security.get("runAsGroup") == 0:
        raise SpecError("template.spec.securityContext: pods do not run as root")
    _check_seccomp("template.spec.securityContext", security)
    if pod.get("hostUsers") not in (None, False):
        raise SpecError("template.spec.hostUsers: only false may be given")
    containers: dict[str, Object] = {}
    listed: Any = pod.get("containers") or []
    if not isinstance(listed, list):
        raise SpecError("template.spec.containers: give a list")
    for given in cast("list[Any]", listed):
        one = _object(given, "template.spec.containers")
        name = str(one.get("name") or EXECUTOR)
        where = f"template.spec.containers[{name[:63]}]"
        if name not in (SIDECAR, EXECUTOR) or name in containers:
            raise SpecError(f"{where}: there is one {EXECUTOR}, the image of boxes, and one {SIDECAR}, the server")
        _check_container(where, one)
        containers[name] = one
    if spec.get("image"):
        if "image" in containers.get(EXECUTOR, {}):
            raise SpecError(f"image: give it alone, or in the template's container {EXECUTOR}")
        containers[EXECUTOR] = {**containers.get(EXECUTOR, {}), "image": spec["image"]}
    if EXECUTOR in containers and not containers[EXECUTOR].get("image"):
        raise SpecError(f"template.spec.containers[{EXECUTOR}]: give its image")
    return template, pod, containers


def _check_container(where: str, given: Object) -> None:
    _closed(where, given, CONTAINER_FIELDS)
    for variable in items(given, "env"):
        _closed(f"{where}.env", _object(variable, f"{where}.env"), ENV_FIELDS)
    security = _object(given.get("securityContext"), f"{where}.securityContext")
    _closed(f"{where}.securityContext", security, CONTAINER_SECURITY)
    _check_seccomp(f"{where}.securityContext", security)


def _check_seccomp(where: str, security: Object) -> None:
    profile = _object(security.get("seccompProfile"), f"{where}.seccompProfile")
    if profile and profile.get("type") not in ("RuntimeDefault", "Localhost"):
        raise SpecError(f"{where}.seccompProfile: give RuntimeDefault, or Localhost with a profile of the node")


def _closed(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    for name in sorted(given.keys() - known):
        raise SpecError(f"{where}.{name[:80]}: not allowed in a pool; there is {', '.join(sorted(known))}")


def _object(value: object, where: str = "template") -> Object:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise SpecError(f"{where}: give an object")
    return cast("Object", value)


def _foreign(labels: object) -> dict[str, str]:
    given = _object(labels, "template.metadata")
    return {str(key): str(value) for key, value in given.items() if not str(key).startswith(f"{names.GROUP}/")}


def _disk_mb(spec: Object) -> int:
    return int(spec.get("diskMb") or DISK_MB)
