"""The OpenAPI document is complete, real answers agree with it, and requests that come too fast are refused."""

from __future__ import annotations

import http.client
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from harena import BoxError, Sandbox
from harena.testing.boxserver import BoxServer, box_server

FIRST = "a" * 30


def ask(server: BoxServer, method: str, path: str, body: Any = None, token: str = FIRST) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    answer = response.status, response.read(), response.getheader("Retry-After", "")
    connection.close()
    return answer


@pytest.fixture
def document(owners: BoxServer) -> dict[str, Any]:
    return json.loads(ask(owners, "GET", "/openapi.json")[1])


def test_every_operation_is_described(document: dict[str, Any]) -> None:
    names: list[str] = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            names.append(operation["operationId"])
            assert len(operation["description"]) > 10, (path, method)
            answers = operation["responses"]
            assert {"400", "401", "404", "429", "503"} <= set(answers), (path, method)
            for status, answer in answers.items():
                assert answer["description"], (path, method, status)
                assert all(content["schema"] for content in answer["content"].values()), (path, method, status)
            if method in ("post", "put", "patch") and "requestBody" in operation:
                assert all(content["schema"] for content in operation["requestBody"]["content"].values())
    assert len(names) == len(set(names))
    assert {"createSession", "executeSteps", "followOperation", "runBatch", "scalePool", "evaluateSession"} <= set(
        names
    )


def test_references_of_the_document_lead_somewhere(document: dict[str, Any]) -> None:
    text = json.dumps(document)
    found = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert found <= set(document["components"]["schemas"])


def test_real_answers_agree_with_the_document(owners: BoxServer, document: dict[str, Any]) -> None:
    def check(path: str, method: str, status: int, data: bytes) -> Any:
        contents = document["paths"][path][method]["responses"][str(status)]["content"]
        lines = "application/x-ndjson" in contents and b"\n" in data
        schema = {**contents["application/x-ndjson" if lines else "application/json"]["schema"], **parts}
        values = [json.loads(line) for line in data.splitlines() if line] if lines else [json.loads(data)]
        for value in values:
            jsonschema_rs.validate(schema, value)
        return values[-1]

    parts = {"components": document["components"]}
    made = check("/v1/sessions", "post", 201, ask(owners, "POST", "/v1/sessions", {})[1])
    session, of_session = f"/v1/sessions/{made['id']}", "/v1/sessions/{session_id}"
    steps = [{"command": ["echo", "hi"]}, {"type": "FilePatch", "path": "a", "content": ""}, {"command": ["false"]}]
    calls: list[tuple[str, str, str, Any, int]] = [
        ("/v1/pools", "post", "/v1/pools", {"name": "documented", "replicas": 0}, 201),
        ("/v1/pools", "get", "/v1/pools", None, 200),
        ("/v1/pools/{namespace}/{name}", "get", "/v1/pools/default/documented", None, 200),
        ("/v1/pools/{namespace}/{name}", "patch", "/v1/pools/default/documented", {"replicas": 0}, 200),
        ("/v1/pools/{namespace}/{name}/status", "get", "/v1/pools/default/documented/status", None, 200),
        ("/v1/pools/{namespace}/{name}/drain", "post", "/v1/pools/default/documented/drain", None, 200),
        ("/v1/pools/{namespace}/{name}", "delete", "/v1/pools/default/documented", None, 200),
        ("/v1/sessions", "get", "/v1/sessions", None, 200),
        (of_session, "get", session, None, 200),
        (f"{of_session}/execute", "post", f"{session}/execute", {"steps": steps, "operationId": "op"}, 200),
        (f"{of_session}/execute", "post", f"{session}/execute", {"steps": steps, "stream": "output"}, 200),
        (f"{of_session}/execute", "post", f"{session}/execute", {"steps": []}, 400),
        (f"{of_session}/execute", "post", f"{session}/execute", {"steps": steps[:1], "operationId": "op"}, 409),
        (f"{of_session}/evaluate", "post", f"{session}/evaluate", {"steps": steps}, 200),
        (f"{of_session}/history", "get", f"{session}/history", None, 200),
        (f"{of_session}/network", "get", f"{session}/network", None, 200),
        (f"{of_session}/files", "get", f"{session}/files?path=nothing", None, 404),
        (f"{of_session}/files", "put", f"{session}/files?path=a", {}, 200),
        (f"{of_session}/files", "put", f"{session}/files?path=a&upload=b", {}, 400),
        (f"{of_session}/uploads/{{upload_id}}", "get", f"{session}/uploads/b", None, 404),
        (f"{of_session}/uploads/{{upload_id}}", "delete", f"{session}/uploads/b", None, 404),
        (f"{of_session}/snapshots", "post", f"{session}/snapshots", None, 201),
        ("/v1/batch", "post", "/v1/batch", {"programs": ["print(1)", "1/0"]}, 200),
        (of_session, "delete", session, None, 200),
        (of_session, "get", session, None, 404),
    ]
    for path, method, where, body, wanted in calls:
        status, data, _ = ask(owners, method.upper(), where, body)
        assert (method, where, status) == (method, where, wanted), data
        check(path, method, status, data)


def test_requests_that_come_too_fast_are_refused_and_later_ones_served(tmp_path: Path) -> None:
    with box_server(tmp_path, "--max-rate", "0.1") as server:
        answers = [ask(server, "GET", "/v1/sessions", token=server.token) for _ in range(4)]
        assert [status for status, _, _ in answers][:2] == [200, 429]
        status, data, after = answers[-1]
        assert (status, json.loads(data)["error"]["retry"]) == (429, "safe")
        assert 1 <= int(after) <= 10
        assert ask(server, "GET", "/healthz")[0] == 200
        assert ask(server, "GET", "/v1/sessions", token="x" * 30)[0] == 401


def test_token_with_the_scope_read_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"watcher {FIRST} read\nworker {'b' * 30} run\n")
    file.chmod(0o600)
    with box_server(tmp_path) as server:
        assert ask(server, "GET", "/v1/sessions")[0] == 200
        for method, path in (("POST", "/v1/sessions"), ("POST", "/v1/batch"), ("DELETE", "/v1/pools/default/x")):
            assert ask(server, method, path, {})[0] == 403
        with pytest.raises(BoxError, match="may only read"):
            Sandbox(server.url, token=FIRST)
        assert ask(server, "POST", "/v1/sessions", {}, token="b" * 30)[0] == 201


def test_unknown_scope_is_refused_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"watcher {FIRST} root\n")
    file.chmod(0o600)
    with pytest.raises(AssertionError, match="some of read, run"), box_server(tmp_path):
        pass
