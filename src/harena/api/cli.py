"""`harena up`: its options. What it needs is imported when it runs: a missing package is named with the line that
installs it.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from harena.arena.variables import VARIABLES, Environ, data_folder
from harena.errors import BackendUnavailable

EPILOG = """\
The first start makes the folder: the database, the files, the secret key, and a key for its host in host.key. The next
one carries on with it. Submissions without a key are taken only while it listens on this machine alone; to let others
in, listen on an address of the network behind a proxy that speaks https, and give people keys.

variables: {variables},
and those of `harena executor` but EXECUTOR_HOST: --host says where everything listens. docs/arena.md explains them.

exit codes:
  0    stopped in order
  2    a wrong argument, or a port or folder that somebody else uses
  3    a package is missing, or this host cannot isolate; says what to install

examples:
  harena up
  harena up --port 9000 --ui-port off --grpc-port off --data ./arena --no-demo
  harena up --no-anonymous-submit --proxy 127.0.0.1 --allow-host arena.example.org"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
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
    command.add_argument("--no-demo", dest="demo", action="store_false", help="start empty, without the examples")
    command.add_argument(
        "--no-anonymous-submit", dest="anonymous", action="store_false", default=None, help="a key also on loopback"
    )
    command.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name that others reach it by"
    )
    command.add_argument(
        "--proxy", default="", metavar="ADDRESS", help="of a proxy whose X-Forwarded-For and -Proto are believed"
    )
    command.add_argument("--json-logs", action="store_true", help="log every request and job, one JSON object a line")
    command.set_defaults(action=_up)


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
            metrics_port=args.metrics_port,
            data=args.data or data_folder(),
            demo=args.demo,
            anonymous_submit=args.anonymous,
            allowed_hosts=tuple(args.allow_host),
            proxy=args.proxy,
            json_logs=args.json_logs,
        )
    )


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 1 to 65535, or 0 for any free one")
    return int(text)


def _port_or_off(text: str) -> int | None:
    return None if text == "off" else _port(text)
