"""Options of `harena serve`."""

from __future__ import annotations

import argparse

from harena.errors import BackendUnavailable, SpecError
from harena.node.rules import AllowedPath, Rules
from harena.sandbox.network import parse_rule
from harena.sandbox.spec import ALLOWANCES

EPILOG = """\
Clients use it with Sandbox("https://HOST:8700", token=...) and SandboxPool(...); docs/serve.md explains the rest.
Nothing of this machine's files is visible to them unless an option allows it.

exit codes:
  0    stopped in order
  2    a wrong argument, or an address that is in use
  3    a package is missing, or this host cannot isolate; the message says what to install

examples:
  harena serve --token-file ~/.harena-tokens
  harena serve --listen 0.0.0.0:8700 --token-file tokens --tls-cert cert.pem --tls-key key.pem
  harena serve --listen unix:/run/harena.sock --allow-image 'python:3.*' --allow-path /data/models"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    rules = Rules()
    command.epilog = EPILOG
    command.add_argument(
        "--listen", default="127.0.0.1:8700", metavar="WHERE", help="HOST:PORT or unix:/PATH (127.0.0.1:8700)"
    )
    command.add_argument(
        "--token-file", metavar="FILE", help="a NAME and a TOKEN on each line; created with one token if missing"
    )
    command.add_argument("--tls-cert", metavar="FILE", help="certificate chain, in PEM")
    command.add_argument("--tls-key", metavar="FILE", help="its private key")
    command.add_argument(
        "--plain-http", action="store_true", help="no TLS outside of this machine, because a proxy adds it"
    )
    command.add_argument("--max-clients", type=int, default=256, metavar="N", help="connections at once (256)")
    command.add_argument(
        "--max-rate", type=_rate, default=1000.0, metavar="N", help="requests of one owner in a second (1000)"
    )
    command.add_argument(
        "--drain",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds that SIGTERM waits for clients and sessions to end, without new ones (0)",
    )
    command.add_argument(
        "--end-idle",
        type=float,
        default=0.0,
        metavar="S",
        help="end S seconds after the last client and session have gone; in pods, which are used once (0: never)",
    )
    command.add_argument(
        "--executor", default="", metavar="SOCKET", help="boxes are made in another container, which connects there"
    )
    command.add_argument(
        "--max-boxes", type=int, default=rules.boxes, metavar="N", help=f"boxes of one owner ({rules.boxes})"
    )
    command.add_argument(
        "--max-memory", type=int, default=rules.memory_mb, metavar="MB", help=f"of one execution ({rules.memory_mb})"
    )
    command.add_argument(
        "--max-disk", type=int, default=rules.disk_mb, metavar="MB", help=f"of one box ({rules.disk_mb})"
    )
    command.add_argument(
        "--allow-path",
        action="append",
        default=[],
        metavar="PATH[:rw]",
        help="a file or folder that clients may use as a mount, a rootfs or a Python",
    )
    command.add_argument(
        "--allow-image", action="append", default=[], metavar="PATTERN", help="images that clients may use and pull"
    )
    command.add_argument(
        "--allow-package", action="append", default=[], metavar="NAME", help="an installed package for boxes; * for all"
    )
    command.add_argument(
        "--allow-network",
        action="append",
        default=[],
        type=_network_entry,
        metavar="PATTERN:PORT",
        help="what boxes may reach, such as '*.example.org:443'; nothing without it",
    )
    command.add_argument("--allow", action="append", default=[], choices=ALLOWANCES, help="what Spec.allow may name")
    command.add_argument(
        "--isolation",
        choices=("full", "restricted"),
        default="full",
        help="the weakest tier that clients may ask for (full)",
    )
    group = command.add_argument_group("journals and accounts (docs/journal.md)")
    group.add_argument("--journal", metavar="FOLDER", help="record sessions there, in a folder for each owner")
    group.add_argument("--journal-key", metavar="FILE", help="a key of at least 16 bytes that signs the journals")
    group.add_argument("--journal-mb", type=int, default=10240, metavar="MB", help="journals of one owner (10240)")
    group.add_argument("--usage", metavar="FILE", help="keep what every owner used in this file (forgotten at the end)")
    group.add_argument(
        "--budget",
        action="append",
        default=[],
        metavar="OWNER:LIMITS",
        help="refuse an owner that has used it up: alice:cpu_s=3600,gib_s=7200,bytes=1e9,boxes=99,per=day; * for all",
    )
    command.set_defaults(action=_serve)


def _rate(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 1e6:
        raise argparse.ArgumentTypeError("from 0.1 to 1000000")
    return value


def _network_entry(text: str) -> str:
    try:
        parse_rule(text)
    except SpecError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _serve(args: argparse.Namespace) -> int:
    try:
        from harena.serve import server
    except ImportError as error:
        if error.name and error.name.startswith("harena"):
            raise
        raise BackendUnavailable(f"`harena serve` needs {error.name}: pip install 'harena[serve]'") from error
    return server.serve(
        server.ServeOptions(
            listen=args.listen,
            token_file=args.token_file,
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            plain_http=args.plain_http,
            max_clients=args.max_clients,
            max_rate=args.max_rate,
            drain_s=args.drain,
            journal=args.journal,
            journal_key=args.journal_key,
            journal_mb=args.journal_mb,
            usage=args.usage,
            budgets=tuple(args.budget),
            end_idle_s=args.end_idle,
            executor=args.executor,
            rules=Rules(
                boxes=args.max_boxes,
                memory_mb=args.max_memory,
                disk_mb=args.max_disk,
                paths=tuple(AllowedPath.parse(one) for one in args.allow_path),
                images=tuple(args.allow_image),
                packages=tuple(args.allow_package),
                allowances=tuple(args.allow),
                network=tuple(args.allow_network),
                isolation=args.isolation,
            ),
        )
    )
