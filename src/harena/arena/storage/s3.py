"""Files in a bucket of a server that speaks S3.

Guarantees: as `ObjectStore` promises; in addition every request is tried again with growing waits before the store
counts as away, and no name or key of the bucket reaches a client except in a signed URL. Keys are laid out as the files
of the folder store, so a folder can be copied into a bucket as it is. Does not create the bucket.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol, cast

import botocore.session  # pyright: ignore[reportMissingTypeStubs]
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError  # pyright: ignore[reportMissingTypeStubs]

from harena.arena.db.files import (
    MAX_BYTES,
    FileDamaged,
    FileMissing,
    FilesUnavailable,
    FileTooLarge,
    KeptFile,
)
from harena.arena.db.models import StorageFull, digest_text, is_digest
from harena.arena.storage.location import Bucket

CONNECT_S = 3.0
READ_S = 20.0
ATTEMPTS = 4
"""Tries of one request, with waits that double: a server that is away is noticed within a few seconds."""
CONNECTIONS = 32
CACHE_BYTES = 64 << 20
CACHED_BYTES = 2 << 20
"""Files up to this size are kept in memory: the code of an agent is read for each of its matches."""
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
FULL = frozenset({"XMinioStorageFull", "QuotaExceeded", "InsufficientStorage", "507"})
_NAME = re.compile(r"[^A-Za-z0-9._-]")
_log = logging.getLogger("harena.arena.storage")


class ObjectBody(Protocol):
    def read(self, amt: int | None = None) -> bytes: ...

    def close(self) -> None: ...


class Client(Protocol):
    """The calls of botocore's client that are used; botocore has no types."""

    def head_bucket(self, **given: Any) -> dict[str, Any]: ...
    def head_object(self, **given: Any) -> dict[str, Any]: ...
    def get_object(self, **given: Any) -> dict[str, Any]: ...
    def put_object(self, **given: Any) -> dict[str, Any]: ...
    def delete_object(self, **given: Any) -> dict[str, Any]: ...
    def list_objects_v2(self, **given: Any) -> dict[str, Any]: ...
    def generate_presigned_url(self, operation: str, Params: dict[str, Any], ExpiresIn: int) -> str: ...


class S3Store:
    def __init__(self, bucket: Bucket) -> None:
        """Does not need the server yet: what it cannot reach is said by the call that needs it."""
        self.bucket = bucket
        self._client = _client(bucket, bucket.endpoint)
        signs = bucket.public and bucket.public != bucket.endpoint
        self._signer = _client(bucket, bucket.public) if signs else self._client
        self._cache = _Cache()

    def put(self, data: bytes, *, max_bytes: int = MAX_BYTES) -> str:
        if len(data) > max_bytes:
            raise FileTooLarge(f"{len(data)} bytes; at most {max_bytes} are taken")
        digest = hashlib.sha256(data).hexdigest()
        with contextlib.suppress(FileMissing):
            if self._head(self._key(digest))["ContentLength"] == len(data):
                return digest
        self._call(lambda: self._client.put_object(**self._at(self._key(digest)), Body=data))
        return digest

    def get(self, digest: str, *, max_bytes: int = MAX_BYTES) -> bytes:
        data = self._cache.get(digest_text(digest))
        if data is None:
            try:
                data = self._read(self._key(digest), digest, max_bytes)
            except FileMissing:
                data = self._read(self._retired_key(digest), digest, max_bytes)
            if hashlib.sha256(data).hexdigest() != digest:
                raise FileDamaged(f"{digest} has other bytes than were put")
            self._cache.put(digest, data)
        if len(data) > max_bytes:
            raise FileTooLarge(f"{digest} has {len(data)} bytes; at most {max_bytes} were asked for")
        return data

    def _read(self, key: str, digest: str, max_bytes: int) -> bytes:
        for attempt in range(ATTEMPTS):
            found = self._call(lambda: self._client.get_object(**self._at(key)), digest)
            if found["ContentLength"] > max_bytes:
                cast("ObjectBody", found["Body"]).close()
                size = found["ContentLength"]
                raise FileTooLarge(f"{digest} has {size} bytes; at most {max_bytes} were asked for")
            # botocore tries a request again, but not an answer that breaks off.
            with contextlib.closing(cast("ObjectBody", found["Body"])) as body:
                try:
                    return body.read(max_bytes + 1)
                except (BotoCoreError, HTTPClientError, OSError) as error:
                    _log.warning("reading %s broke off (attempt %d of %d): %s", digest, attempt + 1, ATTEMPTS, error)
        raise FilesUnavailable("the file storage breaks off its answers")

    def has(self, digest: str) -> bool:
        try:
            self._head(self._key(digest))
        except FileMissing:
            return False
        return True

    def size_bytes(self, digest: str) -> int:
        try:
            return self._head(self._key(digest))["ContentLength"]
        except FileMissing:
            return self._head(self._retired_key(digest))["ContentLength"]

    def link(self, digest: str, name: str, *, lifetime_s: int) -> str | None:
        if not self.bucket.public:
            return None
        safe = _NAME.sub("_", name)
        return self._signer.generate_presigned_url(
            "get_object",
            Params={
                **self._at(self._key(digest)),
                "ResponseContentDisposition": f'attachment; filename="{safe}"',
                "ResponseContentType": "application/octet-stream",
            },
            ExpiresIn=lifetime_s,
        )

    def problem(self) -> str:
        try:
            self._call(lambda: self._client.head_bucket(Bucket=self.bucket.name))
        except FileMissing:
            return f"the bucket {self.bucket.name} does not exist"
        except (FilesUnavailable, StorageFull) as error:
            return str(error)
        return ""

    # ---- garbage ----

    def kept(self) -> Iterator[KeptFile]:
        return self._listed(self.bucket.prefix, lambda name: name[:2] + name[3:] if name[2:3] == "/" else "")

    def retired(self) -> Iterator[KeptFile]:
        return self._listed(f"{self.bucket.prefix}retired/", lambda name: name)

    def retire(self, digest: str) -> None:
        """The copy is there before the file goes: it can be read at any moment."""
        self._move(self._key(digest), self._retired_key(digest))
        self._cache.drop(digest)

    def restore(self, digest: str) -> None:
        self._move(self._retired_key(digest), self._key(digest))

    def purge(self, digest: str) -> None:
        self._call(lambda: self._client.delete_object(**self._at(self._retired_key(digest))))
        self._cache.drop(digest)

    # ---- parts ----

    def _move(self, source: str, target: str) -> None:
        """Written anew and not copied by the server: some keep the time of the original, and `retired` goes by it."""
        with contextlib.suppress(FileMissing):
            data = self._read(source, source, MAX_BYTES)
            self._call(lambda: self._client.put_object(**self._at(target), Body=data))
            self._call(lambda: self._client.delete_object(**self._at(source)))

    def _listed(self, prefix: str, digest_of: Callable[[str], str]) -> Iterator[KeptFile]:
        more: dict[str, Any] = {}
        while True:
            page = self._call(
                lambda given=more: self._client.list_objects_v2(Bucket=self.bucket.name, Prefix=prefix, **given)
            )
            for one in page.get("Contents", ()):
                digest = digest_of(one["Key"].removeprefix(prefix))
                if is_digest(digest):
                    yield KeptFile(digest, one["Size"], one["LastModified"].timestamp())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _head(self, key: str) -> dict[str, Any]:
        return self._call(lambda: self._client.head_object(**self._at(key)))

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket.name, "Key": key}

    def _key(self, digest: str) -> str:
        digest_text(digest)
        return f"{self.bucket.prefix}{digest[:2]}/{digest[2:]}"

    def _retired_key(self, digest: str) -> str:
        return f"{self.bucket.prefix}retired/{digest_text(digest)}"

    def _call(self, request: Callable[[], dict[str, Any]], what: str = "it") -> dict[str, Any]:
        with _in_our_words(what):
            return request()


@contextlib.contextmanager
def _in_our_words(what: str) -> Generator[None]:
    """Errors by their code. What the server said is logged, and not told: it may name keys and hosts."""
    try:
        yield
    except ClientError as error:
        answer = cast("dict[str, Any]", error.response)
        code = str(answer.get("Error", {}).get("Code", ""))
        status = str(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        if code in MISSING:
            raise FileMissing(f"no file {what}") from None
        _log.warning("the file storage refused a request: %s", error)
        if code in FULL or status in FULL:
            raise StorageFull("no space is left in the file storage") from error
        reason = f"refuses us ({code or status})" if status.startswith("4") else "fails"
        raise FilesUnavailable(f"the file storage {reason}: tell the host") from error
    except (BotoCoreError, HTTPClientError, OSError) as error:
        _log.warning("the file storage cannot be reached: %s", error)
        raise FilesUnavailable("the file storage cannot be reached now") from error


def _client(bucket: Bucket, endpoint: str) -> Client:
    session = cast("Any", botocore.session.Session())
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        max_pool_connections=CONNECTIONS,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        signature_version="s3v4",
        s3={"addressing_style": "path" if bucket.endpoint else "auto"},
        # Newer checksums are unknown to many servers; the name of a file is its checksum.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    made = session.create_client(
        "s3",
        region_name=bucket.region,
        endpoint_url=endpoint or None,
        aws_access_key_id=bucket.access_key,
        aws_secret_access_key=bucket.secret_key,
        aws_session_token=bucket.session_token or None,
        config=config,
    )
    return cast("Client", made)


class _Cache:
    """The latest small files. Their names are their content, so nothing in it is ever out of date."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, digest: str) -> bytes | None:
        with self._lock:
            data = self._kept.get(digest)
            if data is not None:
                self._kept.move_to_end(digest)
            return data

    def put(self, digest: str, data: bytes) -> None:
        if len(data) > CACHED_BYTES:
            return
        with self._lock:
            if digest not in self._kept:
                self._kept[digest] = data
                self._size += len(data)
            while self._size > CACHE_BYTES:
                self._size -= len(self._kept.popitem(last=False)[1])

    def drop(self, digest: str) -> None:
        with self._lock:
            self._size -= len(self._kept.pop(digest, b""))
