"""The OpenAPI document: what it allows and what it forbids, thrown at the API. No 500, and answers as documented."""

from __future__ import annotations

import hypothesis
import pytest
from starlette.testclient import TestClient

from harena.api.app import create_app
from harena.arena.db.models import Scope
from support.served import bearer, submitted

STREAMS = ("/v1/events", "/v1/matches/{match_id}/live")


def operations(document):
    return {
        (method, path): operation
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in ("get", "post", "put", "delete")
    }


def test_every_route_of_v1_is_documented_with_its_answer_and_refusals(client):
    found = operations(client.get("/openapi.json").json())
    assert len(found) > 50
    for name, operation in found.items():
        assert operation["summary"], name
        assert "4XX" in operation["responses"], name
        good = [status for status in operation["responses"] if status.startswith("2")]
        assert len(good) == 1, name
    identifiers = [operation["operationId"] for operation in found.values()]
    assert len(set(identifiers)) == len(identifiers)


def test_requests_are_closed_schemas(client):
    document = client.get("/openapi.json").json()
    for name, operation in operations(document).items():
        for content in operation.get("requestBody", {}).get("content", {}).values():
            schema = content["schema"]
            for reference in [schema.get("$ref"), *(option.get("$ref") for option in schema.get("anyOf", []))]:
                if reference:
                    model = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
                    assert model["additionalProperties"] is False, name


@pytest.fixture(scope="module")
def fuzzed(new_arena):
    """An arena of its own: what is thrown at it as its host stays there."""
    arena = new_arena()
    arena.hub.start()
    app = create_app(arena, loopback=False, allowed_hosts=["testserver"])
    token = arena.store.keys.create("fuzzer", [Scope.ADMIN])[1]
    client = TestClient(app, client=("127.0.0.1", 1))
    submitted(client, token)
    yield app, token
    client.close()


@pytest.mark.slow
@pytest.mark.timeout(110)
@pytest.mark.parametrize(("who", "examples"), [("nobody", 2), ("admin", 6)])
def test_nothing_that_the_document_allows_or_forbids_breaks_it(fuzzed, who, examples):
    app, token = fuzzed
    import schemathesis  # takes 1.5 s, and one process of many runs this test

    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"Host": "localhost"})
    headers = {"Host": "localhost", **(bearer(token) if who == "admin" else {})}
    checks = [
        schemathesis.checks.not_a_server_error,
        schemathesis.checks.content_type_conformance,
        schemathesis.checks.response_schema_conformance,
    ]
    chosen = [op.ok() for op in schema.get_all_operations() if op.ok().path not in STREAMS]
    assert len(chosen) > 50
    for operation in chosen:

        @hypothesis.given(case=operation.as_strategy())
        @hypothesis.settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        def throw(case):
            if isinstance(case.body, dict) and isinstance(case.body.get("wait_s"), float):
                case.body["wait_s"] = min(case.body["wait_s"], 0.1)  # a claim may wait longer than this client does
            case.call_and_validate(headers=headers, checks=checks)

        throw()
