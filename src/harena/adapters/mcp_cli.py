"""Options of `harena mcp`."""

from __future__ import annotations

import argparse
import asyncio
import sys

from harena.adapters.mcp_boxes import McpOptions
from harena.errors import BackendUnavailable, SpecError
from harena.serve.tokens import Tokens

EPILOG = """\
Without --http the client is the program that started this command and talks over stdin and stdout:
  {"mcpServers": {"harena": {"command": "harena", "args": ["mcp"]}}}
With --http every client has a token and boxes of its own; give the URL http://127.0.0.1:8765/mcp and the header
"Authorization: Bearer TOKEN". A proxy must add TLS if clients are elsewhere.

tools: run_code run_command write_file read_file list_files new_box fork_box close_box list_boxes

examples:
  harena mcp --package numpy
  harena mcp --http 127.0.0.1:8765 --token-file ~/.harena-tokens --allow-image 'python:3.*'"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    usual = McpOptions()
    command.epilog = EPILOG
    command.add_argument("--http", metavar="HOST:PORT", help="serve over HTTP instead of stdin and stdout")
    command.add_argument("--token-file", metavar="FILE", help="a NAME and a TOKEN on each line; created if missing")
    command.add_argument("--max-boxes", type=int, default=usual.max_boxes, help=f"of one client ({usual.max_boxes})")
    command.add_argument(
        "--idle", type=float, default=usual.idle_s, help=f"seconds until a box closes ({usual.idle_s:g})"
    )
    command.add_argument(
        "--wall", type=float, default=usual.wall_s, help=f"seconds of one call at most ({usual.wall_s:g})"
    )
    command.add_argument("--memory", type=int, default=usual.memory_mb, help=f"megabytes ({usual.memory_mb})")
    command.add_argument("--processes", type=int, default=usual.processes, help=f"at once ({usual.processes})")
    command.add_argument("--disk", type=int, default=usual.workspace_mb, help=f"megabytes ({usual.workspace_mb})")
    command.add_argument("--output", type=int, default=usual.output_bytes, help=f"bytes ({usual.output_bytes})")
    for option, metavar, text in (
        ("--tool", "NAME", "offer only this tool; repeatable (all of them)"),
        ("--package", "NAME", "an installed package that boxes may import"),
        ("--allow-image", "PATTERN", "images that new_box may name"),
        ("--allow-network", "HOST:PORT", "what boxes may reach; nothing without it"),
    ):
        command.add_argument(option, action="append", default=[], metavar=metavar, help=text)
    command.set_defaults(action=_mcp)


def _mcp(args: argparse.Namespace) -> int:
    try:
        from harena.adapters import mcp
    except ImportError as error:
        if error.name and error.name.startswith("harena"):
            raise
        raise BackendUnavailable(f"`harena mcp` needs {error.name}: pip install 'harena[mcp]'") from error
    options = McpOptions(
        max_boxes=args.max_boxes,
        idle_s=args.idle,
        wall_s=args.wall,
        memory_mb=args.memory,
        processes=args.processes,
        workspace_mb=args.disk,
        output_bytes=args.output,
        images=tuple(args.allow_image),
        network=tuple(args.allow_network),
        packages=tuple(args.package),
    )
    _ = options.spec(None), options.limits()  # refuse wrong values now, not at the first call
    if args.http is None:
        if args.token_file:
            raise SpecError("--token-file is for --http: over stdin there is one client")
        asyncio.run(mcp.serve_stdio(options, tuple(args.tool)))
        return 0
    host, port = _address(args.http)
    if not args.token_file:
        raise SpecError("--http needs --token-file FILE: everybody who reaches the port could run code")
    tokens = Tokens.read(args.token_file)
    print(f"harena: MCP on http://{host}:{port}/mcp, tokens in {args.token_file}", file=sys.stderr)
    asyncio.run(mcp.serve_http(options, tokens, host, port, tuple(args.tool)))
    return 0


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise SpecError(f"--http {text!r:.80}: give HOST:PORT, such as 127.0.0.1:8765")
    return (host if colon and host else "127.0.0.1"), int(port)
