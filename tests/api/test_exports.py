"""Whole boards and logs as files, with cells that no spreadsheet runs."""

from __future__ import annotations

import csv
import importlib.util
import io
import json

import pytest

from support.served import bearer, failed, ranked

ENV = "Pendulum-v1"
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("http://evil")']


@pytest.fixture(scope="module", autouse=True)
def environment(arena):
    arena.put_environment(ENV)


def rows(client, what, **query):
    answer = client.get(f"/v1/export/{what}", params={"env_id": ENV, **query})
    assert answer.status_code == 200, answer.text
    assert "attachment" in answer.headers["content-disposition"]
    return answer


def test_formulas_in_names_are_made_harmless(client, arena):
    for number, formula in enumerate(FORMULAS):
        ranked(arena, client, user_id="formula", algorithm=formula, env_id=ENV, score=-float(number))
    for what in ("board", "submissions"):
        text = rows(client, what).text
        cells = [cell for line in csv.reader(io.StringIO(text)) for cell in line]
        for cell in cells:
            if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(cell)  # a number is itself
        assert {f"'{formula}" for formula in FORMULAS} <= set(cells)


def test_a_board_as_csv_and_json_lines_is_the_board(client, arena):
    for name, score in (("x", -3.0), ("y", -1.0), ("z", -3.0)):
        ranked(arena, client, user_id=f"export-{name}", env_id=ENV, score=score)
    lines = [json.loads(line) for line in rows(client, "board", format="jsonl").text.splitlines()]
    table = list(csv.DictReader(io.StringIO(rows(client, "board").text)))
    shown = client.get("/v1/boards", params={"env_id": ENV, "limit": 200}).json()["entries"]
    fields = ("rank", "submission_id", "owner", "score", "at")
    assert [[line[field] for field in fields] for line in lines] == [
        [entry[field] for field in fields] for entry in shown
    ]
    assert [line["submission_id"] for line in table] == [entry["submission_id"] for entry in shown]


def test_more_than_a_page_comes_in_order_and_once(client, arena, monkeypatch):
    monkeypatch.setattr("harena.api.routes.exports.PAGE", 2)
    for number in range(7):
        ranked(arena, client, user_id=f"paged{number}", env_id=ENV, score=float(number // 2))
    lines = [json.loads(line) for line in rows(client, "board", format="jsonl").text.splitlines()]
    ids = [line["submission_id"] for line in lines]
    assert len(ids) == len(set(ids)) >= 7
    assert [line["score"] for line in lines] == sorted((line["score"] for line in lines), reverse=True)
    sent = [json.loads(line)["id"] for line in rows(client, "submissions", format="jsonl").text.splitlines()]
    assert len(sent) == len(set(sent)) >= len(ids)


def test_others_failures_and_reasons_are_not_exported(client, arena, new_key):
    _, token = new_key()
    submission_id = failed(arena, client, token, env_id=ENV)
    assert submission_id not in rows(client, "submissions").text
    mine = client.get("/v1/export/submissions", params={"env_id": ENV}, headers=bearer(token)).text
    assert submission_id in mine
    assert "secret" not in mine


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
@pytest.mark.parametrize("what", ["board", "matches", "ratings", "submissions"])
def test_parquet_can_be_read(client, arena, what):
    import pyarrow.parquet

    ranked(arena, client, user_id="columns", env_id=ENV)
    table = pyarrow.parquet.read_table(io.BytesIO(rows(client, what, format="parquet").content))
    assert "submission_id" in table.column_names or "id" in table.column_names
    assert table.num_rows >= (1 if what in ("board", "submissions") else 0)


def test_without_the_extra_parquet_says_what_to_install(client, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    answer = client.get("/v1/export/board", params={"env_id": ENV, "format": "parquet"})
    assert (answer.status_code, answer.json()["code"]) == (501, "extra_missing")
    assert "harena[parquet]" in answer.json()["hint"]


def test_what_is_not_exported_is_refused(client):
    assert client.get("/v1/export/keys", params={"env_id": ENV}).status_code == 422
    assert client.get("/v1/export/board", params={"env_id": ENV, "format": "xlsx"}).status_code == 422
    assert client.get("/v1/export/board", params={"env_id": "nowhere"}).status_code == 404
    assert client.get("/v1/export/board", params={"env_id": ENV, "season": 1}).status_code == 404
