"""/v1/export: whole boards, match logs, ratings and submissions as CSV, JSON lines or Parquet.

Promises: rows are read page by page and sent as they come, so that a large export needs little memory and a slow reader
holds no connection to the database; a cell that a spreadsheet would take for a formula is made harmless. Shows what
everybody may see.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
import itertools
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from fastapi import APIRouter, Query
from starlette.responses import Response, StreamingResponse

from harena import schema
from harena.api import visibility
from harena.api.answers import views
from harena.api.answers.openapi import answers, model
from harena.api.auth import Reader
from harena.api.context import Api, ApiOf
from harena.api.http.errors import ApiError
from harena.api.routes.environments import MAX_SEASON, EnvId
from harena.api.routes.submissions import viewer
from harena.arena.db.environments import EnvironmentRecord
from harena.arena.db.exports import PAGE, Row
from harena.arena.db.models import BoardKind, SubmissionKind
from harena.arena.db.queries import Viewer

router = APIRouter(prefix="/v1", tags=["exports"])

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
CHUNK = 256 * 1024
MAX_CACHED = 1 << 20
"""Bytes. A larger export is made for each reader, and sent as it is read."""
MEDIA = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}

What = Literal["board", "matches", "ratings", "submissions"]
Format = Literal["csv", "jsonl", "parquet"]

_SCORES = {
    "rank": int,
    "submission_id": str,
    "owner": str,
    "algorithm": str,
    "version": int,
    "score": float,
    "low": float,
    "high": float,
    "at": str,
}
_GAMES = {"games": int, "wins": int, "draws": int, "losses": int}
COLUMNS: dict[str, dict[str, type]] = {
    "board": {**_SCORES, **_GAMES},
    "matches": {
        "number": int,
        "id": str,
        "kind": str,
        "rated": bool,
        "state": str,
        "winner": int,
        "reason": str,
        "steps": int,
        "wall_s": float,
        "created_at": str,
        "finished_at": str,
        "tournament_id": str,
        "submissions": str,
        "scores": str,
        "statuses": str,
    },
    "ratings": {"match": int, "submission_id": str, "rating": float, "sigma": float, "at": str},
    "submissions": {
        "id": str,
        "owner": str,
        "env_id": str,
        "algorithm": str,
        "version": int,
        "kind": str,
        "state": str,
        "score": float,
        "low": float,
        "high": float,
        "created_at": str,
        "updated_at": str,
        "digest": str,
        "anonymous": bool,
    },
}


@router.get(
    "/export/{what}",
    responses={**answers(media=MEDIA.values()), 501: {"model": model(schema.Problem)}},
    summary="All of it, as a file",
)
def export(
    api: ApiOf,
    who: Reader,
    what: What,
    env_id: EnvId,
    format: Format = "csv",
    board: BoardKind | None = None,
    season: Annotated[int | None, Query(ge=1, le=MAX_SEASON)] = None,
) -> Response:
    env = visibility.environment(api, who, env_id)
    shown = viewer(api, who)
    nobodys = shown.owner is None and shown.client_id is None and not shown.everything
    everybodys = visibility.shared(env) and (what != "submissions" or nobodys)
    key = ("export", env.env_id, what, format, board, season)
    topics = (f"board:{env.env_id}", f"matches:{env.env_id}")
    name = {"Content-Disposition": f'attachment; filename="harena-{what}.{format}"'}
    kept = api.boards.answer(key) if everybodys else None
    if kept is not None:
        return Response(kept.body, 200, name, MEDIA[format])
    versions = api.boards.versions(topics)
    which = board or BoardKind(views.default_board(env.kind))
    sources: dict[str, Callable[[], Iterator[Row]]] = {
        "board": lambda: _board(api, env, which, season),
        "matches": lambda: _matches(api, env),
        "ratings": lambda: _ratings(api, env),
        "submissions": lambda: _submissions(api, env, shown),
    }
    rows, columns = sources[what](), COLUMNS[what]
    if format == "parquet":
        chunks = _parquet(rows, columns)
    else:
        chunks = _csv(rows, columns) if format == "csv" else _jsonl(rows)
    first = _first(chunks)
    if sum(map(len, first)) > MAX_CACHED:
        return StreamingResponse(itertools.chain(first, chunks), 200, name, MEDIA[format])
    body = b"".join(first)
    if everybodys:
        api.boards.keep_answer(key, body, topics, versions)
    return Response(body, 200, name, MEDIA[format])


def _first(chunks: Iterator[bytes]) -> list[bytes]:
    """All of it, or a little more than is kept in the cache."""
    taken: list[bytes] = []
    size = 0
    for chunk in chunks:
        taken.append(chunk)
        size += len(chunk)
        if size > MAX_CACHED:
            break
    return taken


# Rows


def _board(api: Api, env: EnvironmentRecord, which: BoardKind, season_id: int | None) -> Iterator[Row]:
    season = api.store.seasons.live(env.env_id) if season_id is None else api.store.seasons.get(season_id)
    if season is not None and season.env_id != env.env_id:
        raise ApiError(404, "not_found", f"season {season.id} is not one of {env.env_id}")
    if which is BoardKind.LADDER or (season is not None and season.ended_at is not None):
        return _standings(api, which, season.id) if season else iter(())
    return _scores(api, env.env_id, SubmissionKind(which.value))


def _scores(api: Api, env_id: str, kind: SubmissionKind) -> Iterator[Row]:
    rank, score = 0, None
    for place, row in enumerate(api.store.exports.scores(env_id, kind), 1):
        rank, score = (rank if row["score"] == score else place), row["score"]
        yield {"rank": rank, **row, "at": views.time_text(row["at"])}


def _standings(api: Api, which: BoardKind, season_id: int) -> Iterator[Row]:
    for row in api.store.exports.standings(season_id, which, COLUMNS["board"]):
        yield {**row, "at": views.time_text(row["at"])}


def _matches(api: Api, env: EnvironmentRecord) -> Iterator[Row]:
    before: int | None = None
    while page := api.store.matches.where(env_id=env.env_id, before=before, limit=PAGE):
        for match in page:
            shape = {name: getattr(match, name, None) for name in COLUMNS["matches"]}
            shape |= {
                "kind": match.kind.value,
                "state": match.state.value,
                "created_at": views.time_text(match.created_at),
                "finished_at": views.time_text(match.finished_at),
                "submissions": [seat.submission_id for seat in match.seats],
                "scores": [seat.score for seat in match.seats],
                "statuses": [seat.status for seat in match.seats],
            }
            yield shape
        before = page[-1].number


def _ratings(api: Api, env: EnvironmentRecord) -> Iterator[Row]:
    for row in api.store.exports.ratings(env.env_id):
        yield {
            "match": row["match_number"],
            "submission_id": row["submission_id"],
            "rating": row["mu"],
            "sigma": row["sigma"],
            "at": views.time_text(row["created_at"]),
        }


def _submissions(api: Api, env: EnvironmentRecord, who: Viewer) -> Iterator[Row]:
    after = ""
    while page := api.queries.submissions_by_id(who, env_id=env.env_id, after=after, limit=PAGE):
        for one in page:
            shape = {name: getattr(one, name) for name in COLUMNS["submissions"]}
            yield shape | {
                "kind": one.kind.value,
                "state": one.state.value,
                "created_at": views.time_text(one.created_at),
                "updated_at": views.time_text(one.updated_at),
            }
        after = page[-1].id


# Formats


def _csv(rows: Iterable[Row], columns: dict[str, type]) -> Generator[bytes]:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
        if text.tell() > CHUNK:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = _joined(cast("list[Any]", value))
    if isinstance(value, str) and value.startswith(FORMULA):
        return f"'{value}"
    return value


def _joined(values: Sequence[Any]) -> str:
    return ";".join("" if value is None else str(value) for value in values)


def _jsonl(rows: Iterable[Row]) -> Generator[bytes]:
    lines = bytearray()
    for row in rows:
        lines += msgspec.json.encode(row) + b"\n"
        if len(lines) > CHUNK:
            yield bytes(lines)
            lines.clear()
    yield bytes(lines)


def _parquet(rows: Iterator[Row], columns: dict[str, type]) -> Generator[bytes]:
    if importlib.util.find_spec("pyarrow") is None:
        raise ApiError(
            501,
            "extra_missing",
            "this server cannot write Parquet",
            hint="the host installs: pip install 'harena[parquet]'",
        )
    return _parquet_chunks(rows, columns)


def _parquet_chunks(rows: Iterator[Row], columns: dict[str, type]) -> Generator[bytes]:
    """Its index is at the end, so the file is made first."""
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    types = {int: arrow.int64(), float: arrow.float64(), str: arrow.string(), bool: arrow.bool_()}
    schema: Any = arrow.schema([(name, types[kind]) for name, kind in columns.items()])
    with tempfile.SpooledTemporaryFile(max_size=4 << 20) as file:
        with parquet.ParquetWriter(file, schema) as writer:
            while page := [_plain(row) for _, row in zip(range(PAGE * 10), rows, strict=False)]:
                writer.write_table(arrow.Table.from_pylist(page, schema=schema))
        file.seek(0)
        while chunk := file.read(CHUNK):
            yield chunk


def _plain(row: Row) -> Row:
    return {
        name: _joined(cast("list[Any]", value)) if isinstance(value, list) else value for name, value in row.items()
    }
