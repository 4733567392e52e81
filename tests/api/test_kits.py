"""Starter kits: what a newcomer downloads plays as it is."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from support.served import ENV, LADDER, upload


@pytest.mark.parametrize("env_id", [ENV, LADDER])
def test_a_kit_has_an_agent_that_can_be_submitted_the_rules_and_a_notebook(client, env_id):
    answer = client.get("/v1/kits", params={"env_id": env_id})
    assert answer.headers["content-type"] == "application/zip"
    assert answer.content == client.get("/v1/kits", params={"env_id": env_id}).content
    with zipfile.ZipFile(io.BytesIO(answer.content)) as kit:
        assert sorted(kit.namelist()) == ["README.md", "agent.py", "notebook.ipynb"]
        agent, readme = kit.read("agent.py"), kit.read("README.md").decode()
        cells = json.loads(kit.read("notebook.ipynb"))["cells"]
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "code"]
    assert f"harena submit agent.py --env {env_id}" in readme
    assert f"harena validate --env {env_id} agent.py" in readme
    scope = {}
    exec(compile(agent, "agent.py", "exec"), scope)
    assert scope["Agent"]().act(None) in range(9)
    assert upload(client, env_id=env_id, data=agent, user_id=f"kit-{env_id}", kind="agent").status_code == 201


def test_a_kit_of_an_unknown_environment_is_not_found(client):
    assert client.get("/v1/kits", params={"env_id": "Nowhere-v0"}).status_code == 404
