"""Objects for agent-sandbox have the fields of its v1beta1 schemas, as they were read there, and no others."""

from __future__ import annotations

import pytest

from harena.kube import agent_sandbox
from harena.operator.pods import make_pod
from harena.operator.views import PoolView

FIELDS = {
    "SandboxTemplate": (
        {"podTemplate", "networkPolicy", "networkPolicyManagement", "envVarsInjectionPolicy", "service"},
        {"podTemplate"},
    ),
    "SandboxWarmPool": ({"replicas", "sandboxTemplateRef", "updateStrategy"}, {"sandboxTemplateRef"}),
    "SandboxClaim": ({"warmPoolRef", "lifecycle", "env", "additionalPodMetadata"}, {"warmPoolRef"}),
}
"""What each kind may have and must have."""


def test_our_objects_have_the_fields_of_the_standard() -> None:
    pool = PoolView(name="p", namespace="n", revision="r")
    pod = make_pod(pool, {}, "keys", server_image="harena:1", authority="ca")
    made = [
        agent_sandbox.template("t", pod["spec"]),
        agent_sandbox.warm_pool("w", "t", 2),
        agent_sandbox.claim_of("w"),
    ]
    for one in made:
        may, must = FIELDS[one["kind"]]
        assert must <= one["spec"].keys() <= may
        assert one["apiVersion"] == "extensions.agents.x-k8s.io/v1beta1"
    assert made[0]["spec"]["podTemplate"].keys() <= {"spec", "metadata"}
    container = made[0]["spec"]["podTemplate"]["spec"]["containers"][0]
    assert container["args"][0] == "serve"
    assert made[1]["spec"]["sandboxTemplateRef"] == {"name": "t"}
    assert made[2]["spec"]["warmPoolRef"] == {"name": "w"}


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ({}, None),
        ({"conditions": [{"type": "Ready", "status": "True"}], "sandbox": {"name": "s"}}, None),
        (
            {"conditions": [{"type": "Ready", "status": "False"}], "sandbox": {"name": "s", "podIPs": ["10.0.0.1"]}},
            None,
        ),
        (
            {
                "conditions": [{"type": "Ready", "status": "True"}],
                "sandbox": {"name": "s", "podIPs": ["10.0.0.1", "::1"]},
            },
            ("s", "10.0.0.1"),
        ),
    ],
)
def test_a_claim_is_ready_when_its_sandbox_has_an_address(status: dict[str, object], found: object) -> None:
    assert agent_sandbox.address_of({"status": status}) == found
