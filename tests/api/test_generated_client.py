"""A client that is generated from the OpenAPI document, used against a real server."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

OPERATIONS = Path(__file__).with_name("operations.txt")


def test_operation_ids_are_stable(client):
    """They are names of functions in other people's code: to change one is to break it."""
    paths = client.get("/openapi.json").json()["paths"]
    found = [
        f"{one['operationId']} {method.upper()} {path}" for path, item in paths.items() for method, one in item.items()
    ]
    missing = set(OPERATIONS.read_text().splitlines()) - set(found)
    assert missing == set()
    identifiers = [line.split()[0] for line in found]
    assert len(set(identifiers)) == len(identifiers)
    assert all(name.isidentifier() for name in identifiers)


@pytest.fixture
def generated(server, tmp_path, monkeypatch):
    if importlib.util.find_spec("openapi_python_client") is None:
        pytest.skip("host: no openapi-python-client")
    with server.client() as http:
        (tmp_path / "openapi.json").write_text(http.get("/openapi.json").text)
    options = ["--path", "openapi.json", "--output-path", "arena_client", "--meta", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "openapi_python_client", "generate", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Cannot parse" not in done.stdout
    use = tmp_path / "use.py"
    use.write_text(USE)

    def run(*arguments):
        made = subprocess.run(
            [sys.executable, str(use), *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert made.returncode == 0, made.stderr
        return json.loads(made.stdout)

    return run


USE = """
import json, sys
from arena_client.client import Client
from arena_client.api.boards import boards_board
from arena_client.api.contract import contract_health
from arena_client.api.environments_and_seasons import environments_environments
from arena_client.api.submissions import submissions_submissions

with Client(base_url=sys.argv[1]) as client:
    health = contract_health.sync(client=client)
    environments = environments_environments.sync(client=client)
    board = boards_board.sync(client=client, env_id=environments.environments[0].env_id, limit=5)
    listed = submissions_submissions.sync(client=client, limit=5)
    print(json.dumps([health.status, [one.env_id for one in environments.environments], board.env_id, len(listed.submissions)]))
"""


@pytest.mark.services
def test_a_generated_client_reads_boards_environments_and_submissions(generated, server):
    health, environments, board, listed = generated(server.url)
    assert health == "healthy"
    assert board == environments[0]
    assert listed >= 0
