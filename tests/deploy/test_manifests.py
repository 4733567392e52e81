"""The manifests of deploy/: one file with all of them, what pods may do, and the whole on a real cluster."""

from __future__ import annotations

import base64
import json
import os
import runpy
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harena.match.executor import config, server
from harena.match.executor.pb import executor_pb2 as pb
from support.executor_client import FIRST_FREE, Client, request, until
from support.match_images import orchestrator_image

assert orchestrator_image
ROOT = Path(__file__).parents[2]
NAME = "rl-arena-executor"


def objects(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def one(kind: str) -> dict[str, Any]:
    (found,) = [made for made in objects(ROOT / "k8s" / "deployment.yaml") if made["kind"] == kind]
    return found


def test_the_one_file_is_made_from_the_folder() -> None:
    made = runpy.run_path(str(ROOT / "deploy" / "bundle.py"))["text"](ROOT / "deploy" / "k8s")
    assert (ROOT / "k8s" / "deployment.yaml").read_text() == made


def test_the_names_and_labels_are_those_of_the_contract() -> None:
    for kind in ("Deployment", "Service"):
        assert (one(kind)["metadata"]["name"], one(kind)["metadata"]["namespace"]) == (NAME, "rl-arena")
        assert one(kind)["metadata"]["labels"] == {"app": NAME}
    assert one("Service")["spec"]["selector"] == {"app": NAME}
    assert one("Service")["spec"]["ports"][0]["port"] == 50051


def test_the_executor_is_confined_and_its_settings_are_accepted() -> None:
    pod = one("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    security = container["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    assert security["capabilities"] == {"drop": ["ALL"]}
    settings = config.parse(one("ConfigMap")["data"]["limits.yaml"])
    assert (settings.use_k8s, settings.k8s.namespace) == (True, "rl-arena")
    assert "data" not in one("Secret")
    assert "stringData" not in one("Secret")


def test_secrets_can_be_created_and_never_read() -> None:
    verbs = {
        (group, kind): rule["verbs"]
        for rule in one("Role")["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    assert verbs == {
        ("batch", "jobs"): ["create", "delete", "list"],
        ("", "secrets"): ["create"],
        ("", "pods"): ["list", "watch"],
        ("", "pods/log"): ["get"],
    }


def test_pods_of_matches_reach_nothing() -> None:
    policies = [made for made in objects(ROOT / "k8s" / "deployment.yaml") if made["kind"] == "NetworkPolicy"]
    (match,) = [made for made in policies if made["spec"]["podSelector"]["matchLabels"] == {"app": "rl-arena-match"}]
    assert match["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & set(match["spec"])


def test_images_run_as_an_ordinary_user() -> None:
    files = sorted((ROOT / "deploy" / "images").glob("*.Dockerfile"))
    assert len(files) == 6
    for path in files:
        assert "\nUSER 65532:65532\n" in path.read_text()


# ---- on a cluster ----


def kubectl(*words: str, stdin: str | None = None) -> str:
    done = subprocess.run(["kubectl", *words], input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def namespace() -> Iterator[str]:
    """The manifests, applied in one go, in a namespace of their own."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG is not set: start a cluster and name it")
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    name = f"rl-arena-{uuid.uuid4().hex[:8]}"
    text = (ROOT / "k8s" / "deployment.yaml").read_text()
    text = text.replace("namespace: rl-arena", f"namespace: {name}").replace("  name: rl-arena\n", f"  name: {name}\n")
    kubectl("apply", "-f", "-", stdin=text)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def kubeconfig_of(namespace: str, folder: Path) -> Path:
    """A kubeconfig with the token of the executor's account."""
    account: list[str] = []

    def ready() -> bool:
        found = json.loads(kubectl("get", "serviceaccount", NAME, "-n", namespace, "-o", "json"))
        account[:] = [secret["name"] for secret in found.get("secrets", ())]
        return bool(account)

    if not until(ready, within_s=5):
        pytest.skip("the cluster makes no token Secrets (Kubernetes 1.24 and newer)")
    data = json.loads(kubectl("get", "secret", account[0], "-n", namespace, "-o", "json"))["data"]
    given = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    given["users"] = [{"name": "executor", "user": {"token": base64.b64decode(data["token"]).decode()}}]
    given["contexts"][0]["context"]["user"] = "executor"
    path = folder / "kubeconfig"
    path.write_text(json.dumps(given))
    return path


@pytest.mark.services
@pytest.mark.kubernetes
@pytest.mark.timeout(300)
def test_everything_is_applied_in_one_go_and_the_account_can_do_its_work_and_no_more(
    namespace: str, orchestrator_image: str, tmp_path: Path
) -> None:
    made = kubectl("get", "deployment,service,hpa,pvc,networkpolicy,role", "-n", namespace, "-o", "name").split()
    assert f"deployment.apps/{NAME}" in made
    assert len(made) == 7
    path = kubeconfig_of(namespace, tmp_path)
    text = f"""
        executor: {{port: 0, use_k8s: true}}
        k8s: {{namespace: {namespace}, orchestrator_image: "{orchestrator_image}", kubeconfig: {path}}}
        replay: {{folder: {tmp_path / "replays"}}}
    """
    with server.start(config.parse(text)) as running, Client(running.port) as client:
        assert client.run(request(FIRST_FREE, FIRST_FREE), timeout=120).status == pb.STATUS_SUCCESS
    for verb, kind, where in (
        ("get", "secrets", namespace),
        ("list", "secrets", namespace),
        ("create", "pods", namespace),
        ("create", "pods/exec", namespace),
        ("list", "pods", "kube-system"),
        ("create", "jobs.batch", "default"),
    ):
        words = ["kubectl", "--kubeconfig", path, "auth", "can-i", verb, kind, "-n", where]
        assert subprocess.run(words, capture_output=True, text=True, timeout=60).stdout.strip() == "no", (verb, kind)


@pytest.mark.services
@pytest.mark.kubernetes
def test_the_overlay_for_one_machine_is_the_same_with_its_patches() -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    made = list(yaml.safe_load_all(kubectl("kustomize", str(ROOT / "deploy" / "overlays" / "local"))))
    kinds = sorted(one["kind"] for one in made)
    assert kinds == sorted(one["kind"] for one in objects(ROOT / "k8s" / "deployment.yaml"))
    (deployment,) = [one for one in made if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["imagePullPolicy"] == "Never"
    assert container["volumeMounts"]
