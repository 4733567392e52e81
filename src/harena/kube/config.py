"""Access to a cluster: from a kubeconfig file, or from the service account of the pod that this process runs in."""

from __future__ import annotations

import base64
import binascii
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harena.errors import BackendUnavailable
from harena.kube.objects import items

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_S = 60.0
"""How long a token of a file or a program is used before it is read again. Kubernetes replaces them well before their
end."""
PLUGIN_S = 60.0
MAX_FILE = 4 << 20

Token = Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    server: str
    """https://HOST:PORT, and a path where the cluster is behind a proxy."""
    context: ssl.SSLContext
    token: Token
    namespace: str = "default"


class Renewed:
    """A token that is read again now and then."""

    def __init__(self, read: Callable[[], str | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._value: str | None = None
        self._until = 0.0

    def __call__(self) -> str | None:
        with self._lock:
            if time.monotonic() >= self._until:
                self._value = self._read()
                self._until = time.monotonic() + TOKEN_S
            return self._value


def is_given() -> bool:
    """Whether this process has been told of a cluster."""
    return bool(os.environ.get("KUBECONFIG")) or in_cluster()


def in_cluster() -> bool:
    return bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and (ACCOUNT / "token").exists()


def named() -> str:
    """What KUBECONFIG names now; empty: nothing."""
    return os.environ.get("KUBECONFIG", "")


def load(path: str | None = None, context: str | None = None) -> ClusterAccess:
    """Return the access of a kubeconfig file: `path`, else KUBECONFIG; else of the pod's service account; else of
    ~/.kube/config. `context` names one of the file, in place of its current one."""
    given = path or os.environ.get("KUBECONFIG")
    if not given and context is None and in_cluster():
        return _of_pod()
    # KUBECONFIG may list several files; the first that exists counts.
    names = (given or os.path.expanduser("~/.kube/config")).split(os.pathsep)
    for name in names:
        if name and os.path.isfile(name):
            return _of_file(Path(name), context)
    raise BackendUnavailable(f"no cluster: {' and '.join(names)} cannot be found; set KUBECONFIG to a kubeconfig file")


def _of_pod() -> ClusterAccess:
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    shown = f"[{host}]" if ":" in host else host
    context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    namespace = (ACCOUNT / "namespace").read_text().strip()
    token = Renewed(lambda: (ACCOUNT / "token").read_text().strip())
    return ClusterAccess(f"https://{shown}:{port}", context, token, namespace)


def _of_file(path: Path, name: str | None) -> ClusterAccess:
    try:
        import yaml
    except ImportError:
        raise BackendUnavailable("kubeconfig files need PyYAML: pip install 'harena[kubernetes]'") from None
    try:
        config: Any = yaml.safe_load(path.read_text()[:MAX_FILE])
        name = name or str(config["current-context"])
        chosen = _named(config, "contexts", "context", name)
        cluster = _named(config, "clusters", "cluster", str(chosen["cluster"]))
        user = _named(config, "users", "user", str(chosen["user"])) if chosen.get("user") else {}
        return _access(path.parent, cluster, user, str(chosen.get("namespace") or "default"))
    except (OSError, yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise BackendUnavailable(f"{path}: not a usable kubeconfig file: {type(error).__name__}: {error}") from None


def _named(config: Any, group: str, kind: str, name: str) -> dict[str, Any]:
    for entry in config.get(group) or ():
        if entry.get("name") == name:
            return cast("dict[str, Any]", entry[kind])
    raise LookupError(f"it has no {kind} {name!r}")


def _access(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any], namespace: str) -> ClusterAccess:
    server = str(cluster["server"]).rstrip("/")
    if not server.startswith("https://"):
        raise ValueError(f"server {server}: only https:// keeps credentials secret")
    if cluster.get("insecure-skip-tls-verify"):
        raise ValueError(
            "insecure-skip-tls-verify: give certificate-authority-data instead; credentials would be exposed"
        )
    authority = _content(folder, cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=None if authority is None else authority.decode())
    token = _token(folder, user, context)
    certificate, key = _content(folder, user, "client-certificate"), _content(folder, user, "client-key")
    if certificate is not None and key is not None:
        _add_certificate(context, certificate, key)
    return ClusterAccess(server, context, token, namespace)


def _content(folder: Path, section: Mapping[str, Any], name: str) -> bytes | None:
    if section.get(f"{name}-data"):
        try:
            return base64.b64decode(section[f"{name}-data"], validate=True)
        except binascii.Error:
            raise ValueError(f"{name}-data: not base64") from None
    return (folder / str(section[name])).read_bytes() if section.get(name) else None


def _add_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # ssl reads certificates of clients from files only.
    with tempfile.NamedTemporaryFile(prefix="harena-kube-") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(file.name)


def _token(folder: Path, user: Mapping[str, Any], context: ssl.SSLContext) -> Token:
    if user.get("tokenFile"):
        path = folder / str(user["tokenFile"])
        return Renewed(lambda: path.read_text().strip())
    if user.get("token"):
        token = str(user["token"])
        return lambda: token
    if user.get("exec"):
        plugin = cast("dict[str, Any]", user["exec"])
        return Renewed(lambda: _run_plugin(plugin, context))
    return lambda: None


def _run_plugin(plugin: Mapping[str, Any], context: ssl.SSLContext) -> str | None:
    """Run the credential program that the user's own kubeconfig names."""
    command = [str(plugin["command"]), *map(str, items(plugin, "args"))]
    added = {str(one["name"]): str(one["value"]) for one in items(plugin, "env")}
    request = {"apiVersion": plugin.get("apiVersion"), "kind": "ExecCredential", "spec": {"interactive": False}}
    env = {**os.environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(request)}
    try:
        ran = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=PLUGIN_S, check=True
        )
        status = json.loads(ran.stdout[:MAX_FILE])["status"]
        if status.get("clientCertificateData") and status.get("clientKeyData"):
            _add_certificate(context, status["clientCertificateData"].encode(), status["clientKeyData"].encode())
        return status.get("token")
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as error:
        raise BackendUnavailable(f"the kubeconfig's program {command[0]} gave no credentials: {error}") from None
