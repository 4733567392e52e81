"""The operator's decisions, by properties: a model of a cluster follows them, and hostile things happen in between."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import given
from hypothesis import strategies as st

from harena.kube import names
from harena.operator import crds, decide, pods
from harena.operator.views import PodView, PoolView, SandboxView, TaskView, pod_view

NOW = 1_000_000.0
POOL = PoolView(name="p", namespace="n", uid="pool", revision="new", finalized=True)

pod_views = st.builds(
    PodView,
    name=st.uuids().map(lambda one: f"p-{one.hex[:10]}"),
    uid=st.uuids().map(str),
    state=st.sampled_from([names.IDLE, names.ALLOCATED, names.RELEASED]),
    revision=st.sampled_from(["new", "old"]),
    ready=st.booleans(),
    finished=st.booleans(),
    deleting=st.booleans(),
    problem=st.sampled_from(["", "ImagePullBackOff: x"]),
    created_at=st.floats(NOW - 400 * 86400, NOW),
    claimed_at=st.floats(NOW - 2 * 86400, NOW),
    finished_at=st.floats(NOW - 100, NOW),
    lifetime_s=st.sampled_from([60.0, 86400.0]),
    pool=st.just("p"),
    sandbox_uid=st.sampled_from(["", "s"]),
    probed=st.booleans(),
)
pools = st.builds(
    lambda replicas, recreate, deleting: dataclasses.replace(
        POOL, replicas=replicas, recreate=recreate, deleting=deleting
    ),
    st.integers(0, 6),
    st.booleans(),
    st.booleans(),
)


def act(decision: decide.Decision, found: list[PodView], numbers: itertools.count[int]) -> list[PodView]:
    """What the cluster has after the actions: deleted pods are gone, created ones are ready."""
    gone = {one.name for one in decision.actions if isinstance(one, decide.DeletePod)}
    kept = [dataclasses.replace(pod, ready=pod.live) for pod in found if pod.name not in gone and not pod.deleting]
    probed = {one.name for one in decision.actions if isinstance(one, decide.ProbePod)}
    kept = [dataclasses.replace(pod, probed=pod.probed or pod.name in probed) for pod in kept]
    for one in decision.actions:
        if isinstance(one, decide.CreatePods):
            for _ in range(one.count):
                made = f"p-new{next(numbers)}"
                kept.append(PodView(name=made, uid=made, revision="new", ready=True, created_at=NOW, pool="p"))
    return kept


@given(pools, st.lists(pod_views, max_size=12))
def test_the_decisions_lead_to_the_wanted_pods_and_then_to_rest(pool: PoolView, found: list[PodView]) -> None:
    numbers = itertools.count()
    now = NOW
    for _ in range(6):
        now += decide.BACKOFF_S
        found = act(decide.decide_pool(pool, found, now), found, numbers)
    idle = [pod for pod in found if pod.state == names.IDLE and pod.live]
    assert len(idle) == (0 if pool.deleting else pool.replicas)
    if pool.recreate:
        assert all(pod.revision == "new" for pod in idle)
    rest = decide.without_status(decide.decide_pool(pool, found, now)).actions
    assert rest == ((decide.SetFinalizer(False),) if pool.deleting else ())


@given(pools, st.lists(pod_views, max_size=12))
def test_a_claimed_pod_is_deleted_only_when_it_ended_or_its_time_is_over(pool: PoolView, found: list[PodView]) -> None:
    deleted = {one.name for one in decide.decide_pool(pool, found, NOW).actions if isinstance(one, decide.DeletePod)}
    for pod in found:
        if pod.state == names.ALLOCATED and not pod.finished and pod.claimed_at + pod.lifetime_s > NOW:
            assert pod.name not in deleted
        if pod.deleting:
            assert pod.name not in deleted  # once is enough


@given(pools, st.lists(pod_views, max_size=12))
def test_no_decision_makes_more_pods_than_are_missing(pool: PoolView, found: list[PodView]) -> None:
    decision = decide.decide_pool(pool, found, NOW)
    made = sum(one.count for one in decision.actions if isinstance(one, decide.CreatePods))
    assert made <= pool.replicas
    status = [one for one in decision.actions if isinstance(one, decide.SetPoolStatus)]
    for one in status:
        assert one.ready <= one.idle
        assert one.total == one.idle + one.allocated


def test_a_server_that_cannot_start_is_not_started_all_the_time() -> None:
    failed = PodView(name="a", uid="a", finished=True, finished_at=NOW, problem="Error: exit code 1", pool="p")
    soon = decide.decide_pool(POOL, [failed], NOW + 1)
    assert decide.without_status(soon).actions == ()
    assert soon.again_s == decide.BACKOFF_S - 1
    later = decide.decide_pool(POOL, [failed], NOW + decide.BACKOFF_S + 1)
    assert {type(one) for one in later.actions} >= {decide.DeletePod, decide.CreatePods}


@given(
    st.builds(
        SandboxView,
        name=st.just("s"),
        namespace=st.just("n"),
        uid=st.just("s"),
        pool=st.just("p"),
        keep_alive=st.booleans(),
        ttl_s=st.sampled_from([None, 0.0, 60.0]),
        lifetime_s=st.sampled_from([None, 60.0]),
        deleting=st.booleans(),
        finalized=st.booleans(),
        phase=st.sampled_from(["", "Pending", "Bound", "Released"]),
        pod=st.sampled_from(["", "p-1"]),
        allocated_at=st.floats(NOW - 100, NOW),
        released_at=st.floats(NOW - 100, NOW),
    ),
    st.none() | pools,
    st.lists(pod_views, max_size=6),
    st.lists(st.sampled_from(["", "Running", "Succeeded", "Failed"]), max_size=3),
)
def test_a_sandbox_has_one_pod_and_never_takes_anothers(
    sandbox: SandboxView, pool: PoolView | None, found: list[PodView], states: list[str]
) -> None:
    tasks = [TaskView(name=str(i), namespace="n", sandbox="s", state=state) for i, state in enumerate(states)]
    decision = decide.decide_sandbox(sandbox, pool, found, tasks, NOW)
    mine = [pod for pod in found if pod.sandbox_uid == "s" and pod.state != names.IDLE]
    taken = [one for one in decision.actions if isinstance(one, decide.ClaimPod | decide.CreatePodFor)]
    assert len(taken) <= 1
    if taken:
        assert not mine
        assert not sandbox.deleting
        assert sandbox.phase != "Released"
    for one in decision.actions:
        if isinstance(one, decide.ClaimPod):
            idle = {pod.name for pod in found if pod.state == names.IDLE and pod.live and pod.ready}
            assert set(one.pods) <= idle
        if isinstance(one, decide.DeletePod):
            assert one.name in {pod.name for pod in mine}


def test_a_task_that_was_running_when_its_sandbox_went_has_failed() -> None:
    task = TaskView(name="t", namespace="n", sandbox="s", state="Running")
    (action,) = decide.decide_task(task, None, False, NOW).actions
    assert isinstance(action, decide.FailTask)
    assert decide.decide_task(task, None, True, NOW).actions == ()


# ---- templates ----

FORBIDDEN = [
    {"hostNetwork": True},
    {"hostPID": True},
    {"hostIPC": True},
    {"hostUsers": True},
    {"serviceAccountName": "admin"},
    {"automountServiceAccountToken": True},
    {"nodeName": "control-plane"},
    {"volumes": [{"name": "x", "hostPath": {"path": "/"}}]},
    {"initContainers": [{"name": "x", "image": "y"}]},
    {"securityContext": {"runAsUser": 0}},
    {"securityContext": {"runAsNonRoot": False}},
    {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    {"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]}},
    {"containers": [{"name": "other", "image": "x"}]},
    {"containers": [{"name": "executor"}]},
    {"containers": [{"name": "executor", "image": "x", "command": ["sh"]}]},
    {"containers": [{"name": "executor", "image": "x", "securityContext": {"privileged": True}}]},
    {"containers": [{"name": "executor", "image": "x", "securityContext": {"capabilities": {"add": ["ALL"]}}}]},
    {"containers": [{"name": "executor", "image": "x", "volumeMounts": [{"name": "keys", "mountPath": "/k"}]}]},
    {"containers": [{"name": "executor", "image": "x", "lifecycle": {"postStart": {"exec": {"command": ["x"]}}}}]},
    {"containers": [{"name": "sidecar", "env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "db"}}}]}]},
    {"containers": "x"},
]


def test_a_template_is_refused_by_the_name_of_what_it_may_not_have() -> None:
    for spec in FORBIDDEN:
        why = pods.check_template({"template": {"spec": spec}})
        assert why, spec
        assert next(iter(spec)) in why


def test_what_a_template_may_choose_reaches_the_pod_and_cannot_weaken_it() -> None:
    resources = {"limits": {"nvidia.com/gpu": "1", "memory": "2Gi"}}
    chosen = {
        "runtimeClassName": "gvisor",
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "spot", "operator": "Exists"}],
        "containers": [{"name": "executor", "image": "python:3.11-slim", "resources": resources}],
    }
    spec = {"template": {"metadata": {"labels": {"team": "a", names.STATE: "allocated"}}, "spec": chosen}}
    assert pods.check_template(spec) == ""
    pod = pods.make_pod(POOL, spec, "p-1", server_image="harena:1", authority="ca")
    for name in ("runtimeClassName", "imagePullSecrets", "nodeSelector", "tolerations"):
        assert pod["spec"][name] == chosen[name]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"][names.STATE] == names.IDLE
    executor = pod["spec"]["containers"][1]
    assert executor["resources"]["limits"]["nvidia.com/gpu"] == "1"
    for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "keys" not in {mount["name"] for mount in executor["volumeMounts"]}  # guests are there


# ---- what Kubernetes and users wrote ----


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["metadata", "labels", "spec", "status", "conditions", "template", "containers", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=20,
    )
)
def test_no_template_makes_the_operator_fail(template: object) -> None:
    assert isinstance(pods.check_template({"template": template}), str)


def test_a_pod_of_which_one_container_ended_counts_as_ended() -> None:
    status = {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "executor", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
    }
    view = pod_view({"metadata": {"name": "a", "creationTimestamp": "2026-01-01T00:00:00Z"}, "status": status})
    assert view.finished
    assert not view.ready
    assert "OOMKilled" in view.problem


def test_the_files_of_the_custom_resources_are_those_of_the_definitions() -> None:
    import pathlib

    folder = pathlib.Path(__file__).parents[2] / "deploy" / "k8s" / "crds"
    assert {file.name: file.read_text() for file in folder.glob("*.yaml")} == crds.files()
