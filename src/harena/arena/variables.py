"""Environment variables of `harena up` and the arena's other commands. The only module of the arena and the API that
reads them; docs/arena.md has the table that `table` makes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from harena import telemetry
from harena.errors import SpecError

MAX_VALUE = 4096
DEFAULT_DATA = "~/.local/share/harena"

VARIABLES = {
    "HARENA_DATA": f"The folder of everything that is kept, unless `--data` names one (`{DEFAULT_DATA}`)",
    "DATABASE_URL": "`postgresql://…` or `sqlite:///…` (a SQLite file in the data folder)",
    "SECRET_KEY": "Signs session cookies; needed with `DATABASE_URL` (made on the first start)",
    "HARENA_ANONYMOUS_SUBMIT": "Whether submitting needs no key; a network needs `--anonymous-submit` (`yes` here)",
    "HARENA_ANONYMOUS_READ": "Whether reading needs no key (`yes`)",
    "HARENA_ENVIRONMENTS": "`any` registered Gymnasium id can be submitted to, or only those that are `listed` (`any`)",
    "HARENA_ALLOW_HOSTS": "Names that others reach it by, with commas between them, as `--allow-host` (none)",
    "HARENA_METRICS_TOKEN": "Bearer token of `/metrics` for other machines (none)",
    "HARENA_PER_DAY": "Submissions of an owner a day; 0: no limit (100)",
    "HARENA_AT_ONCE": "Submissions of an owner under way at a time; 0: no limit (10)",
    "HARENA_MAX_QUEUED": "Submissions that wait, of all owners (1000)",
    "HARENA_WORKERS": "Processes that play (one for each processor)",
    "HARENA_AGENT_IMAGES": "Repositories of images that may be agents, with commas between them (none)",
    "HARENA_WEBHOOKS": "Where webhooks may go: `hooks.example.org:443,*.example.net:443,10.0.0.0/8:8080` (nowhere)",
    "HARENA_SMTP_URL": "`smtp://user:password@host:587` or `smtps://…`: sends news by mail (none)",
    "HARENA_MAIL_FROM": "Sender of that mail (`harena@localhost`)",
    "HARENA_STORAGE_URL": "Files: a folder, or `s3://BUCKET/PREFIX?endpoint=…` (`files` in the data folder)",
    "AWS_ACCESS_KEY_ID": "Key of the bucket (none)",
    "AWS_SECRET_ACCESS_KEY": "Secret of that key (none)",
    "AWS_SESSION_TOKEN": "Session token of that key (none)",
    "AWS_REGION": "Region of the bucket, unless its URL names one (`us-east-1`)",
    "SUPABASE_URL": "Files in Supabase Storage, through its S3 endpoint (none)",
    "SUPABASE_BUCKET": "Its bucket (none)",
    "SUPABASE_SERVICE_KEY": "Its service key, where no `AWS_ACCESS_KEY_ID` is set (none)",
    "SUPABASE_ANON_KEY": "Its anonymous key, which signs requests with the service key (none)",
    "HARENA_KEEP_DAYS": "Days that replays and logs are kept; 0: forever (0)",
    "HARENA_KEEP_MATCHES": "Latest matches of each environment whose replays and logs are kept; 0: all (0)",
    "CELERY_BROKER_URL": "`redis://…` or `amqp://…`: tells `harena worker --celery` of new jobs (none)",
    "REDIS_URL": "`redis://…`: replicas share board sets, notices of changes and rate limits there (none)",
    "EXECUTOR_HOST": "Address of the gRPC executor (that of `--host`)",
    "EXECUTOR_PORT": "Port of the gRPC executor, unless `--grpc-port` names one (50051)",
    **telemetry.VARIABLES,
    "LOG_LEVEL": "`DEBUG`, `INFO`, `WARNING` or `ERROR` (`WARNING`; `INFO` with `--json-logs`)",
}
"""What each one does, and in brackets what holds without it."""

WITHOUT_EFFECT = {
    "CELERY_RESULT_BACKEND": "results are in the database",
    "DOCKER_HOST": "boxes are made by the local backend",
}
"""Variables that people set for such a service and this one does not use, and what it does instead."""


class Environ:
    """Reads the variables of the table, and no others."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = os.environ if values is None else values

    def text(self, name: str) -> str:
        if name not in VARIABLES:
            raise KeyError(f"{name} is not in the table of variables")
        value = self._values.get(name, "").strip()
        if len(value) > MAX_VALUE:
            raise SpecError(f"{name} is longer than {MAX_VALUE} characters")
        return value

    def number(self, name: str, default: int | None) -> int | None:
        """0 means none."""
        text = self.text(name)
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 9:
            raise SpecError(f"{name}={text!r:.40}: a whole number, 0 for none")
        return int(text) or None

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        known = {"": default, "1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if text not in known:
            raise SpecError(f"{name}={text!r:.40}: yes or no")
        return known[text]

    def choice(self, name: str, values: Sequence[str]) -> str:
        """One of the values; the first where it is not set."""
        text = self.text(name).lower() or values[0]
        if text not in values:
            raise SpecError(f"{name}={text!r:.40}: {' or '.join(values)}")
        return text

    def without_effect(self) -> dict[str, str]:
        """Those that are set in vain, and what happens instead."""
        return {name: instead for name, instead in WITHOUT_EFFECT.items() if self._values.get(name)}


def data_folder() -> Path:
    return Path(Environ().text("HARENA_DATA") or DEFAULT_DATA).expanduser()


def table() -> str:
    """Return the table of variables in Markdown, for the docs."""
    lines = [f"| `{name}` | {meaning} |" for name, meaning in VARIABLES.items()]
    return "\n".join(["| variable | what it does (without it) |", "|---|---|", *lines])
