"""Options of `harena operator`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from harena.errors import BackendUnavailable

EPILOG = """\
exit codes:
  0    stopped in order
  3    a package is missing, or there is no cluster; the message says what to do

examples:
  harena operator run --server-image rl-arena-operator:latest            all namespaces of the cluster of KUBECONFIG
  harena operator run --server-image rl-arena-operator:latest --namespace boxes
  harena operator crds | kubectl apply -f -"""
NODE_PARTS = (
    "__init__.py",
    "backends",
    "command.py",
    "errors.py",
    "images",
    "lazy.py",
    "network",
    "node",
    "sandbox",
    "terminal.py",
)
"""Parts of the package that the node of an executor container needs."""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    command.epilog = EPILOG
    verbs = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run = verbs.add_parser("run", help="look after warm pools, sandboxes and tasks", formatter_class=raw)
    run.add_argument(
        "--server-image",
        default=os.environ.get("HARENA_SERVER_IMAGE", "rl-arena-operator:latest"),
        metavar="IMAGE",
        help="image of pods, which has `harena serve` (HARENA_SERVER_IMAGE, rl-arena-operator:latest)",
    )
    run.add_argument("--namespace", metavar="NAME", help="the only namespace to look after (all)")
    run.add_argument("--lease-namespace", metavar="NAME", help="where the leader's Lease is (the operator's own)")
    run.add_argument("--port", type=int, metavar="N", help="port of /healthz and /metrics (none)")
    run.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    run.set_defaults(action=_run)
    crds = verbs.add_parser("crds", help="print the custom resource definitions", formatter_class=raw)
    crds.set_defaults(action=_crds)
    lay_out = verbs.add_parser("lay-out", help="used by init containers: copy the node's code", formatter_class=raw)
    lay_out.add_argument("folder", metavar="FOLDER")
    lay_out.set_defaults(action=_lay_out)


def _run(args: argparse.Namespace) -> int:
    try:
        from harena.operator import handlers
    except ImportError as error:
        if error.name and error.name.startswith("harena"):
            raise
        raise BackendUnavailable(f"the operator needs {error.name}: pip install 'harena[operator]'") from error
    handlers.set_up_logs(args.log_level)
    options = handlers.OperatorOptions(
        server_image=args.server_image,
        namespace=args.namespace,
        lease_namespace=args.lease_namespace,
        port=args.port,
    )
    handlers.run(options)
    return 0


def _crds(args: argparse.Namespace) -> int:
    from harena.operator import crds

    sys.stdout.write("---\n".join(crds.files().values()))
    return 0


def _lay_out(args: argparse.Namespace) -> int:
    """Copy what a node needs, for the Python of another image."""
    source, target = Path(__file__).parents[1], Path(args.folder) / "harena"
    target.mkdir(parents=True, exist_ok=True)
    for part in NODE_PARTS:
        if (source / part).is_dir():
            skipped = shutil.ignore_patterns("__pycache__", "*.c", "*.h", "kubernetes", "remote")
            shutil.copytree(source / part, target / part, ignore=skipped, dirs_exist_ok=True)
        else:
            shutil.copy2(source / part, target / part)
    return 0
