"""Options of `harena up` and `harena worker`. What they need is imported when they run: a missing package is named with
the line that installs it.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from harena.arena.variables import VARIABLES, Environ, data_folder
from harena.errors import BackendUnavailable
from harena.node.variables import token

EPILOG = """\
The first start makes the folder: the database, the files, the secret key, and a key for its host in host.key. The next
one carries on with it. Submissions without a key are taken only while it listens on this machine alone; to let others
in, listen on an address of the network behind a proxy that speaks https, and give people keys.

variables: {variables},
and those of `harena executor`. docs/arena.md explains them.

exit codes:
  0    stopped in order
  2    a wrong argument, or a port or folder that somebody else uses
  3    a package is missing, or this host cannot isolate; says what to install

examples:
  harena up
  harena up --port 9000 --ui-port off --grpc-port off --data ./arena --no-demo
  harena up --no-anonymous-submit --proxy 127.0.0.1 --allow-host arena.example.org"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    {"up": _fill_up, "worker": _fill_worker}[name](command)


def _fill_up(command: argparse.ArgumentParser) -> None:
    names = textwrap.fill(", ".join(VARIABLES), 120, initial_indent=" " * len("variables: ")).strip()
    command.epilog = EPILOG.format(variables=names)
    command.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (127.0.0.1)")
    command.add_argument("--port", type=_port, default=8000, metavar="N", help="of the API and the page (8000)")
    command.add_argument(
        "--ui-port", type=_port_or_off, default=7860, metavar="N", help="of the page, once more; or off (7860)"
    )
    command.add_argument(
        "--grpc-port",
        type=_port_or_off,
        default=Environ().text("EXECUTOR_PORT") or "50051",
        metavar="N",
        help="of the executor; or off ($EXECUTOR_PORT, else 50051)",
    )
    command.add_argument(
        "--metrics-port", type=_port_or_off, default=9100, metavar="N", help="of the workers' counters; or off (9100)"
    )
    command.add_argument("--data", type=Path, metavar="DIR", help="where everything is kept ($HARENA_DATA)")
    command.add_argument(
        "--no-demo", dest="demo", action="store_false", help="environments without the demonstration's agents"
    )
    command.add_argument(
        "--anonymous-submit",
        dest="anonymous",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="whether anybody who can reach the arena may submit without a key (by default only on loopback)",
    )
    command.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name that others reach it by"
    )
    command.add_argument(
        "--proxy", default="", metavar="ADDRESS", help="of a proxy whose X-Forwarded-For and -Proto are believed"
    )
    command.add_argument(
        "--no-workers", dest="workers", action="store_false", help="leave the jobs to `harena worker`; no gRPC executor"
    )
    command.add_argument(
        "--no-matchmaker", dest="matchmaker", action="store_false", help="leave the matches to another `harena up`"
    )
    command.add_argument("--json-logs", action="store_true", help="log every request and job, one JSON object a line")
    command.set_defaults(action=_up)


WORKER_EPILOG = """\
With --server the worker needs nothing but a token: it pulls jobs over HTTP, and sends back what happened. Make its key
with `harena keys create --owner NAME --scopes worker`. Without --server it works on the database that DATABASE_URL
names, as `harena up` does; it then needs the arena's data folder too, because code, logs and replays
are files there.

SIGTERM and Ctrl-C let it finish what it does; a second one gives that back to the queue at once.

exit codes:
  0    stopped in order
  2    a wrong argument, or the server refuses this worker; says why
  3    a package is missing, or this host cannot isolate; says what to install

examples:
  harena worker --server https://arena.example.org --token hrn_…
  harena worker --server http://10.0.0.5:8000 --slots 4 --env CartPole-v1 --env pong-v1
  DATABASE_URL=postgresql://… SECRET_KEY=… harena worker --data /srv/arena
  CELERY_BROKER_URL=redis://… DATABASE_URL=… SECRET_KEY=… harena worker --celery"""


def _fill_worker(command: argparse.ArgumentParser) -> None:
    command.epilog = WORKER_EPILOG
    command.add_argument("--server", default="", metavar="URL", help="pull jobs from this arena over HTTP")
    command.add_argument("--token", default="", metavar="TOKEN", help="of a key with the scope worker ($HARENA_TOKEN)")
    command.add_argument("--name", default="", metavar="NAME", help="that the server knows it by (host and process)")
    command.add_argument("--slots", type=_count, metavar="N", help="jobs at once (one for each processor)")
    command.add_argument("--celery", action="store_true", help="do jobs when Celery calls ($CELERY_BROKER_URL)")
    command.add_argument("--env", action="append", default=[], metavar="ID", help="only jobs of this environment")
    command.add_argument(
        "--metrics-port", type=_port_or_off, default=9100, metavar="N", help="of its counters; or off (9100)"
    )
    command.add_argument("--data", type=Path, metavar="DIR", help="the arena's folder, without --server ($HARENA_DATA)")
    command.add_argument("--json-logs", action="store_true", help="log every job, one JSON object a line")
    command.set_defaults(action=_work)


def _work(args: argparse.Namespace) -> int:
    try:
        from harena.api.worker import run
    except ImportError as error:
        if error.name and error.name.startswith("harena"):
            raise
        raise BackendUnavailable(f"`harena worker` needs {error.name}: pip install 'harena[arena]'") from error
    return run.work(
        run.WorkerOptions(
            data=args.data or data_folder(),
            server=args.server.rstrip("/"),
            token=args.token or token() or "",
            name=args.name,
            slots=args.slots,
            environments=tuple(args.env),
            celery=args.celery,
            metrics_port=args.metrics_port,
            json_logs=args.json_logs,
        )
    )


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 to 1024")
    return int(text)


def _up(args: argparse.Namespace) -> int:
    try:
        from harena.api import server
    except ImportError as error:
        if error.name and error.name.startswith("harena"):
            raise
        raise BackendUnavailable(f"`harena up` needs {error.name}: pip install 'harena[arena]'") from error
    return server.up(
        server.ServerOptions(
            host=args.host,
            port=args.port,
            ui_port=args.ui_port,
            grpc_port=args.grpc_port,
            grpc_host=Environ().text("EXECUTOR_HOST"),
            metrics_port=args.metrics_port,
            data=args.data or data_folder(),
            demo=args.demo,
            anonymous_submit=args.anonymous,
            allowed_hosts=tuple(args.allow_host),
            proxy=args.proxy,
            json_logs=args.json_logs,
            workers=args.workers,
            matchmaker=args.matchmaker,
        )
    )


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to 65535, or 0 for any free one")
    return int(text)


def _port_or_off(text: str) -> int | None:
    return None if text == "off" else _port(text)
