"""What a host decides: where the data lies and who may do how much (`Settings`), and how an environment is played
(`EnvironmentSettings`).

Promises: a wrong value is refused with its name before anything is opened. There is no SECRET_KEY that everybody knows:
the embedded default makes one of its own and keeps it, any other database wants one to be given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from harena.arena.db import integrity
from harena.arena.db.models import unseen
from harena.arena.db.records import DefaultQuota
from harena.arena.storage.location import Bucket, location
from harena.arena.storage.rules import RetentionRules
from harena.arena.submissions import evaluate
from harena.arena.variables import MAX_VALUE, Environ
from harena.errors import SpecError
from harena.match.agent.image import PullPolicy, checked_pattern
from harena.match.agent.load import MB, ArchiveLimits
from harena.match.result import Clock

MIN_SECRET = 16
"""Bytes."""
AGENT_IMAGES = "HARENA_AGENT_IMAGES"
PULL_S = 300.0
"""Time for an image that is handed in."""
MAX_UPLOAD = 60 * MB
"""A file of the file store has 64 MB; names and the list of a zip need some of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: Path
    """The folder of everything that is kept: database, files, key, lock."""
    database_url: str = field(repr=False)
    """May hold a password."""
    secret_key: bytes = field(repr=False)
    """Signs what browsers bring back."""
    quota: DefaultQuota = field(default_factory=DefaultQuota)
    anonymous_submit: bool = False
    anonymous_read: bool = True
    any_environment: bool = True
    """Whether a registered Gymnasium id that the host has not added is added with its first submission."""
    metrics_token: str = field(default="", repr=False)
    """Lets scrapers on other machines read /metrics without a key: `Authorization: Bearer TOKEN`."""
    max_upload_bytes: int = 50 * MB
    """Maximum size of a submission, both packed and unpacked."""
    max_file_bytes: int = 10 * MB
    max_queued: int = 1000
    """Submissions that wait, of all owners; more are refused."""
    workers: int | None = None
    """Processes that play; None: one for each processor."""
    scripts_at_once: int = 1
    webhooks: tuple[str, ...] = ()
    """Where webhooks may go, as in `Network.allow`; empty: nowhere."""
    smtp_url: str = field(default="", repr=False)
    """The mail server; empty: no mail is sent. May hold a password."""
    mail_from: str = "harena@localhost"
    celery_broker: str = field(default="", repr=False)
    """May hold a password."""
    redis_url: str = field(default="", repr=False)
    """May hold a password."""
    storage: Path | Bucket | None = None
    """Where files are; None: in the data folder."""
    retention: RetentionRules = field(default_factory=RetentionRules)
    agent_images: tuple[str, ...] = ()
    """Repositories whose images may be handed in, and are pulled: docker.io/library/python, registry.example/team/*."""

    def __post_init__(self) -> None:
        if len(self.secret_key) < MIN_SECRET:
            raise SpecError(f"SECRET_KEY has at least {MIN_SECRET} bytes; `openssl rand -hex 32` makes a good one")
        if not 1 <= self.max_upload_bytes <= MAX_UPLOAD or not 1 <= self.max_file_bytes <= self.max_upload_bytes:
            raise SpecError(f"max_upload_bytes is from 1 to {MAX_UPLOAD}, and max_file_bytes at most as much")
        if self.max_queued < 1 or self.scripts_at_once < 0 or (self.workers is not None and self.workers < 1):
            raise SpecError("max_queued and workers are at least 1, scripts_at_once at least 0")
        for entry in self.agent_images:
            try:
                checked_pattern(entry)
            except SpecError as error:
                raise SpecError(f"{AGENT_IMAGES}: {error}") from None

    @property
    def embedded(self) -> bool:
        """Whether the database is a file, which one process serves."""
        return self.database_url.startswith("sqlite")

    @property
    def files(self) -> Path | Bucket:
        return self.storage or self.data / "files"

    @property
    def archive_limits(self) -> ArchiveLimits:
        return ArchiveLimits(total_bytes=self.max_upload_bytes, file_bytes=self.max_file_bytes)

    @property
    def pull_policy(self) -> PullPolicy:
        return PullPolicy(allow=self.agent_images, only_listed=True, timeout_s=PULL_S, setting=AGENT_IMAGES)

    @classmethod
    def from_env(
        cls,
        data: str | os.PathLike[str],
        environ: Mapping[str, str] | None = None,
        *,
        anonymous_submit: bool | None = None,
    ) -> Settings:
        """Makes the folder if need be. Reads the variables of `variables`; `anonymous_submit`, when given, wins."""
        given = Environ(environ)
        folder = Path(data).absolute()
        make_folder(folder)
        embedded = f"sqlite:///{folder / 'arena.db'}"
        url = given.text("DATABASE_URL") or embedded
        key = given.text("SECRET_KEY").encode()
        if not key:
            if url != embedded:
                raise SpecError("SECRET_KEY is not set, and a database of your own (DATABASE_URL) needs one")
            key = kept_secret(folder / "secret.key")
        default = DefaultQuota()
        if anonymous_submit is None:
            anonymous_submit = given.flag("HARENA_ANONYMOUS_SUBMIT", False)
        return cls(
            data=folder,
            database_url=url,
            secret_key=key,
            quota=DefaultQuota(
                per_day=given.number("HARENA_PER_DAY", default.per_day),
                at_once=given.number("HARENA_AT_ONCE", default.at_once),
            ),
            anonymous_submit=anonymous_submit,
            anonymous_read=given.flag("HARENA_ANONYMOUS_READ", True),
            any_environment=given.choice("HARENA_ENVIRONMENTS", ("any", "listed")) == "any",
            metrics_token=given.text("HARENA_METRICS_TOKEN"),
            max_queued=given.number("HARENA_MAX_QUEUED", None) or 1000,
            workers=given.number("HARENA_WORKERS", None),
            webhooks=tuple(rule.strip() for rule in given.text("HARENA_WEBHOOKS").split(",") if rule.strip()),
            smtp_url=given.text("HARENA_SMTP_URL"),
            mail_from=given.text("HARENA_MAIL_FROM") or "harena@localhost",
            celery_broker=given.text("CELERY_BROKER_URL"),
            redis_url=given.text("REDIS_URL"),
            storage=location(environ, folder / "files"),
            retention=RetentionRules(
                keep_days=given.number("HARENA_KEEP_DAYS", None), keep_matches=given.number("HARENA_KEEP_MATCHES", None)
            ),
            agent_images=tuple(name.strip() for name in given.text(AGENT_IMAGES).split(",") if name.strip()),
        )

    @staticmethod
    def worker_images(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Repositories whose images a worker without a data folder may pull."""
        names = tuple(name.strip() for name in Environ(environ).text(AGENT_IMAGES).split(",") if name.strip())
        for name in names:
            checked_pattern(name)
        return names


def make_folder(folder: Path) -> None:
    """The folder, where everything is kept and this user may write. Raises SpecError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise SpecError(f"{folder} is, or is below, a file: --data names a folder") from None
    except OSError as error:
        raise SpecError(f"the folder {folder} cannot be made: {error.strerror}; choose another with --data") from None
    reason = integrity.writable(folder)
    if reason:
        raise SpecError(f"{folder}: {reason}; choose another with --data, or mend it")


def kept_secret(path: Path) -> bytes:
    """The secret in the file, which is made on first use and only its owner may read."""
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_hex(32).encode())
            file.flush()
            os.fsync(file.fileno())
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise SpecError(f"{path} can be read by others: `chmod 600` it, or delete it to have a new one made")
        key = file.read(MAX_VALUE).strip()
    if len(key) < MIN_SECRET:
        raise SpecError(f"{path} holds no secret of {MIN_SECRET} bytes: delete it to have a new one made")
    return key


MAX_CLOCK_S = 86400.0
_Seconds = Annotated[float, Meta(gt=0, le=MAX_CLOCK_S)]


class EnvironmentSettings(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The closed schema of what the database keeps as an environment's settings. Texts are plain, not HTML."""

    title: Annotated[str, Meta(max_length=200)] = ""
    summary: Annotated[str, Meta(max_length=2000)] = ""
    rules: Annotated[str, Meta(max_length=50_000)] = ""
    sample_agent: Annotated[str, Meta(max_length=50_000)] = ""
    episodes: Annotated[int, Meta(ge=1, le=evaluate.MAX_EPISODES)] = evaluate.EPISODES
    """On hidden seeds, for the public board."""
    practice_episodes: Annotated[int, Meta(ge=1, le=100)] = evaluate.PRACTICE_EPISODES
    """On public seeds, with logs and replays for the owner."""
    final_episodes: Annotated[int, Meta(ge=1, le=evaluate.MAX_EPISODES)] = evaluate.FINAL_EPISODES
    """On seeds from the second secret, for the final board."""
    finalists: Annotated[int, Meta(ge=1, le=10)] = 2
    """Submissions of each owner that are evaluated again at the season's end."""
    start_s: _Seconds = 30.0
    move_s: _Seconds = 5.0
    bank_s: Annotated[float, Meta(ge=0, le=86400)] = 0.0
    match_s: _Seconds = 300.0
    memory_mb: Annotated[int, Meta(ge=16, le=1 << 20)] = 512
    processes: Annotated[int, Meta(ge=1, le=10_000)] = 50
    games_target: Annotated[int, Meta(ge=0, le=1_000_000)] = 60
    """On a ladder, matches are made without delay until every agent has played this many, then one every `upkeep_s`."""
    upkeep_s: Annotated[float, Meta(ge=0, le=86400)] = 30.0
    provisional_games: Annotated[int, Meta(ge=0, le=1_000_000)] = 10
    owners_meet: bool = False
    """Whether two agents of one owner play each other. An owner could feed one by the other."""
    agents_per_owner: Annotated[int, Meta(ge=0, le=1000)] = 3
    """How many agents of one owner may play on a ladder at the same time; 0: any number."""
    model: Literal["plackett-luce", "elo"] = "plackett-luce"

    @classmethod
    def parse(cls, settings: Mapping[str, Any]) -> EnvironmentSettings:
        """Raises SpecError, which names the field."""
        try:
            return msgspec.convert(dict(settings), cls)
        except (msgspec.ValidationError, TypeError) as error:
            raise SpecError(f"the environment's settings: {error}") from None

    def check_texts(self) -> None:
        """When they are set: no text of a host's hides something or turns the text around it. Raises SpecError."""
        for name in ("title", "summary", "rules", "sample_agent"):
            hidden = unseen(getattr(self, name), lines=name != "title")
            if hidden is not None:
                raise SpecError(f"the environment's {name} has U+{ord(hidden):04X}, which cannot be seen: leave it out")

    def as_json(self) -> dict[str, Any]:
        return msgspec.to_builtins(self)

    @property
    def clock(self) -> Clock:
        return Clock(start_s=self.start_s, move_s=self.move_s, bank_s=self.bank_s, match_s=self.match_s)

    @property
    def final_clock(self) -> Clock:
        """Each episode of the finals has as much time as on the public board."""
        share = max(1.0, self.final_episodes / self.episodes)
        return dataclasses.replace(self.clock, match_s=min(MAX_CLOCK_S, self.match_s * share))
