"""Where files are, how long they are kept, and that collecting garbage takes nothing that is needed."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from harena.arena.db.files import FileMissing, FileStore
from harena.arena.db.ladder.matches import Seated
from harena.arena.db.models import Event, MatchKind, MatchState, TournamentState
from harena.arena.db.records import EvaluationOutcome
from harena.arena.db.retention import short
from harena.arena.storage.collect import collect
from harena.arena.storage.location import Bucket, location
from harena.arena.storage.rules import RetentionRules
from harena.errors import SpecError
from support.submitting import AGENT, TIC, Bench

DAY_S = 86400.0
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "hidden"}
FOREVER = RetentionRules()


@pytest.fixture
def files(tmp_path):
    return FileStore(tmp_path / "files")


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path, None)
    yield made
    made.close()


def age(files, digest, days):
    path = files.root / digest[:2] / digest[2:]
    path = path if path.exists() else files.root / "retired" / digest
    os.utime(path, (time.time() - days * DAY_S,) * 2)


def test_a_url_names_the_place_of_files():
    here = Path("/data/files")
    assert location({}, here) == here
    assert location({"HARENA_STORAGE_URL": "/srv/files"}, here) == Path("/srv/files")
    assert location({"HARENA_STORAGE_URL": "file:///srv/files"}, here) == Path("/srv/files")
    found = location({"HARENA_STORAGE_URL": "s3://arena/a/b/?endpoint=https://minio:9000&region=eu-1", **KEYS}, here)
    assert (found.name, found.prefix, found.endpoint, found.region, found.public) == (
        "arena",
        "a/b/",
        "https://minio:9000",
        "eu-1",
        "",
    )
    amazon = location({"HARENA_STORAGE_URL": "s3://arena", "AWS_REGION": "eu-west-1", **KEYS}, here)
    assert amazon.public == "https://s3.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://arena", "AWS_ACCESS_KEY_ID"),
        ("gs://arena", "s3://BUCKET"),
        ("s3://key:secret@arena", "must not hold credentials"),
        ("s3://arena?endpoint=ftp://x", "endpoint is an address"),
        ("s3://arena?endpoint=https://key:secret@x", "endpoint is an address"),
        ("s3://arena?acl=public", "'acl' is no option"),
        ("s3://arena/../other", "prefix"),
        ("s3://x", "no name of a bucket"),
        ("s3:///prefix", "no name of a bucket"),
    ],
)
def test_what_names_no_place_is_refused_with_the_reason(url, words):
    keys = {} if words == "AWS_ACCESS_KEY_ID" else KEYS
    with pytest.raises(SpecError, match=words) as refused:
        location({"HARENA_STORAGE_URL": url, **keys}, Path("/x"))
    assert "secret" not in str(refused.value)


def test_supabase_is_reached_through_its_s3_endpoint():
    given = {"SUPABASE_URL": "https://abcd.supabase.co", "SUPABASE_BUCKET": "replays"}
    with pytest.raises(SpecError, match="SUPABASE_SERVICE_KEY and SUPABASE_ANON_KEY"):
        location(given, Path("/x"))
    found = location({**given, "SUPABASE_SERVICE_KEY": "service", "SUPABASE_ANON_KEY": "anon"}, Path("/x"))
    assert isinstance(found, Bucket)
    assert found.endpoint == "https://abcd.supabase.co/storage/v1/s3"
    assert (found.access_key, found.secret_key, found.session_token) == ("abcd", "anon", "service")
    assert found.public == "", "a signed link would carry the service key"
    assert "service" not in repr(found)
    assert "anon" not in repr(found)
    signed = location({**given, **KEYS}, Path("/x"))
    assert (signed.public, signed.session_token) == ("https://abcd.supabase.co/storage/v1/s3", "")


def test_a_retired_file_can_be_read_until_it_is_purged(files):
    digest = files.put(b"bytes")
    files.retire(digest)
    assert (files.has(digest), files.get(digest), files.size_bytes(digest)) == (False, b"bytes", 5)
    assert [one.digest for one in files.retired()] == [digest]
    files.restore(digest)
    assert files.has(digest)
    files.retire(digest)
    files.purge(digest)
    with pytest.raises(FileMissing):
        files.get(digest)


def test_only_what_no_row_names_goes_and_only_after_two_days(bench):
    files, store = bench.files, bench.store
    sent = bench.send(AGENT)
    garbage, fresh = files.put(b"garbage"), files.put(b"fresh")
    for digest in (sent.digest, garbage):
        age(files, digest, 2)
    done = collect(store, files, FOREVER)
    assert (done.kept, done.retired, done.purged) == (2, 1, 0)
    assert files.get(garbage) == b"garbage"
    assert collect(store, files, FOREVER).purged == 0
    age(files, garbage, 2)
    assert collect(store, files, FOREVER).purged == 1
    with pytest.raises(FileMissing):
        files.get(garbage)
    assert files.has(sent.digest)
    assert files.has(fresh)


def test_a_row_that_comes_while_the_file_is_retired_takes_it_back(bench):
    files, store = bench.files, bench.store
    digest = files.put(b"log of a job that is about to end")
    age(files, digest, 2)
    collect(store, files, FOREVER)
    sent = bench.send(AGENT)
    store.draws.keep_practice(sent.id, {"episodes": [{"log": digest, "replay": None}], "score": 1.0})
    age(files, digest, 2)
    assert collect(store, files, FOREVER).restored == 1
    assert files.has(digest)


def test_a_dry_run_changes_nothing(bench):
    digest = bench.files.put(b"garbage")
    age(bench.files, digest, 2)
    assert collect(bench.store, bench.files, FOREVER, dry_run=True).retired == 1
    assert bench.files.has(digest)


def test_every_column_that_can_name_a_file_counts(bench):
    store, files = bench.store, bench.files
    sent = bench.send(AGENT)
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(3)]
    store.draws.keep_practice(sent.id, {"episodes": [{"log": digests[0]}]})
    store.jobs.enqueue("script", {"agent_log": digests[1]})
    with store.begin() as connection:
        connection.exec_driver_sql(f"UPDATE submissions SET log_digest = '{digests[2]}'")
    found = store.retention.references()
    assert {short(digest) for digest in (*digests, sent.digest)} <= found
    assert short(files.put(b"nobody's")) not in found


def test_uploads_beside_a_collector_lose_nothing(bench):
    """Old garbage is uploaded again while a collector that waits for nothing retires it at every moment."""
    files, store = bench.files, bench.store
    ending = threading.Event()

    def sweep():
        while not ending.is_set():
            collect(store, files, FOREVER, grace_s=0.0 if not list(files.retired()) else 3600.0)

    sent = []
    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        for number in range(5):
            sent.append(bench.send(AGENT + f"# {number}".encode(), owner=f"owner {number}"))
            assert files.get(sent[-1].digest)
    finally:
        ending.set()
        thread.join()
    collect(store, files, FOREVER, grace_s=0.0)
    assert all(files.has(one.digest) for one in sent)


# ---- retention ----


def played(store, agents, replay, log, *, tournament=None):
    kind = MatchKind.TOURNAMENT if tournament else MatchKind.LADDER
    match = store.matches.create(TIC, agents, seed=1, kind=kind, tournament_id=tournament)
    seats = [Seated(score=score, status="ok", log_digest=log) for score in (1.0, 0.0)]
    return store.matches.finish(match.id, MatchState.FINISHED, seats=seats, winner=0, replay_digest=replay)


@pytest.fixture
def ladder(bench):
    agents = [bench.send(AGENT, env_id=TIC, owner=owner).id for owner in ("ann", "bob")]
    return lambda **more: played(bench.store, agents, bench.files.put(b"replay"), bench.files.put(b"log"), **more)


def left(store):
    return [match.replay_digest is not None for match in store.matches.where(env_id=TIC)]


def test_without_a_rule_everything_is_kept(bench, ladder):
    for _ in range(3):
        ladder()
    assert not collect(bench.store, bench.files, FOREVER).forgotten
    assert left(bench.store) == [True] * 3


def test_only_the_latest_matches_keep_their_replays_and_logs(bench, ladder):
    for _ in range(5):
        ladder()
    done = collect(bench.store, bench.files, RetentionRules(keep_matches=2))
    assert done.forgotten.matches == 3
    assert left(bench.store) == [True, True, False, False, False]
    oldest = bench.store.matches.where(env_id=TIC)[-1]
    assert [seat.log_digest for seat in oldest.seats] == [None, None]
    assert [seat.score for seat in oldest.seats] == [1.0, 0.0], "the result stays"
    assert not collect(bench.store, bench.files, RetentionRules(keep_matches=2)).forgotten


def test_old_matches_forget_their_replays_and_finals_never_do(bench, ladder):
    store = bench.store
    final = store.tournaments.add(
        id="f" * 32,
        env_id=TIC,
        season_id=store.seasons.live(TIC).id,
        name="finals",
        format="round-robin",
        finals=True,
        settings={"participants": [], "games": 1, "rounds": 1, "seed": 0},
        state=TournamentState.RUNNING,
    )
    ladder()
    ladder(tournament=final.id)
    with store.begin() as connection:
        connection.exec_driver_sql(f"UPDATE matches SET finished_at = finished_at - {40 * DAY_S}")
    ladder()
    assert collect(store, bench.files, RetentionRules(keep_days=30)).forgotten.matches == 1
    assert left(store) == [True, True, False]


def test_old_logs_go_but_not_those_of_a_submission_on_a_board(bench):
    store, files = bench.store, bench.files
    sent = [bench.send(AGENT + owner.encode(), owner=owner) for owner in ("#ann", "#bob")]
    log = files.put(b"log")
    report = {"episodes": [{"episode": 0, "replay": files.put(b"replay"), "log": log}], "score": 1.0}
    for one in sent:
        store.draws.keep_practice(one.id, report)
        store.submissions.move(one.id, Event.START)
    outcome = EvaluationOutcome(score=1.0, episodes=1, metrics={})
    store.submissions.rank(sent[0].id, outcome, log_digest=log)
    store.submissions.fail(sent[1].id, "it failed", platform=False, log_digest=log)
    with store.begin() as connection:
        connection.exec_driver_sql(f"UPDATE submissions SET updated_at = updated_at - {40 * DAY_S}")
    assert collect(store, files, RetentionRules(keep_days=30)).forgotten.submissions == 1
    ranked, failed = (store.submissions.get(one.id) for one in sent)
    assert (ranked.log_digest, failed.log_digest) == (log, None)
    assert store.draws.practice(sent[0].id) == report
    assert store.draws.practice(sent[1].id) is None
