"""The Helm chart, rendered by Helm itself: it makes the same objects as the plain manifests."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harena.match.executor import config

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "rl-arena"
PLAIN = ROOT / "deploy" / "k8s"
Objects = dict[tuple[str, str, str], Any]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    helm = shutil.which("helm", path=f"{Path(sys.executable).parent}") or shutil.which("helm")
    if helm is None:
        pytest.skip("host: no helm for this platform; the package helm-binary has it for some")
    return subprocess.run([helm, *words], capture_output=True, text=True, timeout=60)


def rendered(*options: str) -> Objects:
    done = run("template", "any", str(CHART), "--include-crds", "--kube-version", "1.30", *options)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def plain(*paths: Path) -> Objects:
    return by_name("\n---\n".join(path.read_text() for path in paths))


def by_name(text: str) -> Objects:
    made: Objects = {}
    for one in yaml.safe_load_all(text):
        if one:
            meta = one["metadata"]
            key = one["kind"], meta.get("namespace", ""), meta["name"]
            assert key not in made, key
            if "limits.yaml" in one.get("data", {}):  # text of another form with the same meaning
                one["data"]["limits.yaml"] = yaml.safe_load(one["data"]["limits.yaml"])
            made[key] = one
    return made


def test_with_its_own_values_the_chart_is_the_plain_manifests() -> None:
    assert rendered() == plain(*PLAIN.glob("*.yaml"), *PLAIN.glob("crds/*.yaml"))


def test_with_everything_on_the_chart_is_all_of_the_plain_manifests() -> None:
    parts = ("worker", "worker.autoscaling", "disruptionBudget", "serviceMonitor")
    made = rendered(*(word for part in parts for word in ("--set", f"{part}.enabled=true")))
    assert made == plain(*PLAIN.rglob("*.yaml"))


def test_values_reach_every_place_where_they_are_meant() -> None:
    options = ("namespace=games", "operator.namespace=games", "imagePullSecrets={keys}", "createNamespaces=false")
    options += ("worker.enabled=true", "worker.server=https://arena.example", "operator.serverImage=mine:2")
    options += ("executor.limits.k8s.orchestrator_image=mine:1", "worker.nodeSelector.pool=spot")
    made = rendered(*(word for option in options for word in ("--set", option)))
    assert {namespace for _, namespace, _ in made} == {"", "games"}
    assert not [kind for kind, _, _ in made if kind == "Namespace"]
    deployments = {
        name: one["spec"]["template"]["spec"] for (kind, _, name), one in made.items() if kind == "Deployment"
    }
    assert [pod["imagePullSecrets"] for pod in deployments.values()] == [[{"name": "keys"}]] * 3
    assert deployments["rl-arena-worker"]["nodeSelector"] == {"pool": "spot"}
    assert {"name": "HARENA_SERVER_IMAGE", "value": "mine:2"} in deployments["harena-operator"]["containers"][0]["env"]
    assert made["ConfigMap", "games", "rl-arena-worker"]["data"]["server"] == "https://arena.example"
    text = yaml.safe_dump(made["ConfigMap", "games", "rl-arena-executor"]["data"]["limits.yaml"])
    settings = config.parse(text)
    assert (settings.k8s.namespace, settings.k8s.orchestrator_image) == ("games", "mine:1")


def test_older_clusters_get_the_versions_that_they_know() -> None:
    everything = ("--set", "disruptionBudget.enabled=true,worker.enabled=true,worker.autoscaling.enabled=true")
    made = rendered(*everything, "--kube-version", "1.20")
    assert made["PodDisruptionBudget", "rl-arena", "rl-arena-executor"]["apiVersion"] == "policy/v1beta1"
    assert made["HorizontalPodAutoscaler", "rl-arena", "rl-arena-worker"]["apiVersion"] == "autoscaling/v2beta2"


@pytest.mark.parametrize(
    "option", ["executer.image=x", "worker.isolation=none", "operator.replicas=-1", "worker.server=x"]
)
def test_a_value_that_means_nothing_is_refused(option: str) -> None:
    done = run("template", "any", str(CHART), "--set", option)
    assert done.returncode != 0
    assert option.split("=")[0].split(".")[0] in done.stderr
