"""Model Context Protocol server: run code and commands, move files and fork boxes, over stdio or HTTP.

A client is the process at the other end of stdio, or the owner of a token over HTTP. Every client has boxes of its own.
What a tool returns comes from the guest: the model that reads it must not trust it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import harena
from harena.adapters.mcp_boxes import DEFAULT, MAX_LISTED, MAX_TEXT, ClientBoxes, McpOptions, as_answer, as_text
from harena.errors import HarenaError, SpecError
from harena.serve import tokens as tokens_file
from harena.serve.tokens import Tokens

T = TypeVar("T")
MAX_BODY = 8 << 20
STDIO = "stdio"
INSTRUCTIONS = """Runs code and commands in isolated boxes without network. Files are in /workspace and stay until the
box is closed. Leave `box` out to use your default box."""

Box = Annotated[str, Field(description="id of a box; leave it out for your default box", max_length=64)]
Timeout = Annotated[float | None, Field(description="seconds until it is ended", gt=0, le=86400)]
Path = Annotated[str, Field(description="path in the box; relative paths start in /workspace", max_length=4000)]
Ctx = Context[Any, Any]


def server(boxes: ClientBoxes, tokens: Tokens | None = None, *, tools: tuple[str, ...] = ()) -> MCPServer[Any]:
    """`tools`: names of those to offer; all of them if empty. The caller closes the boxes."""
    made: MCPServer[Any] = MCPServer("harena", version=harena.__version__, instructions=INSTRUCTIONS)
    logging.getLogger("mcp").setLevel(logging.WARNING)
    offered = _tools(boxes, tokens)
    unknown = sorted(set(tools) - set(offered))
    if unknown:
        raise SpecError(f"no tool {unknown[0]!r:.40}; there is {', '.join(offered)}")
    for name in tools or offered:
        made.add_tool(offered[name], name=name)
    return made


def _tools(boxes: ClientBoxes, tokens: Tokens | None) -> dict[str, Callable[..., Any]]:
    def client_of(ctx: Ctx) -> str:
        if tokens is None:
            return STDIO
        header = (ctx.headers or {}).get("authorization", "")
        owner = tokens.owner(header.encode("latin-1"))
        if owner is None:
            raise ToolError("the request has no valid token")
        return owner

    async def run_code(code: str, ctx: Ctx, box: Box = DEFAULT, timeout_s: Timeout = None) -> dict[str, Any]:
        """Run Python in the box's persistent interpreter, which keeps its variables. Print what you want to see."""
        found = await _told(boxes.find(client_of(ctx), box))
        return as_answer(await _told(found.run(code, limits=boxes.options.limits(timeout_s))))

    async def run_command(
        command: str, ctx: Ctx, box: Box = DEFAULT, stdin: str = "", timeout_s: Timeout = None
    ) -> dict[str, Any]:
        """Run a shell command in the box, in /workspace."""
        found = await _told(boxes.find(client_of(ctx), box))
        argv, limits = ["sh", "-c", command], boxes.options.limits(timeout_s)
        return as_answer(await _told(found.exec(argv, stdin=stdin.encode(), limits=limits)))

    async def write_file(path: Path, text: str, ctx: Ctx, box: Box = DEFAULT) -> dict[str, Any]:
        """Write a text file into the box. Missing folders are created."""
        found = await _told(boxes.find(client_of(ctx), box))
        await _told(found.write(path, text))
        return {"bytes": len(text.encode())}

    async def read_file(path: Path, ctx: Ctx, box: Box = DEFAULT) -> dict[str, Any]:
        """Read a file of the box: as text, or as base64 if it is not UTF-8."""
        found = await _told(boxes.find(client_of(ctx), box))
        return as_text(await _told(found.read(path, max_bytes=MAX_TEXT)))

    async def list_files(ctx: Ctx, path: Path = ".", box: Box = DEFAULT) -> dict[str, Any]:
        """List a folder of the box."""
        found = await _told(boxes.find(client_of(ctx), box))
        entries = await _told(found.list(path, max_entries=MAX_LISTED))
        return {"entries": [{"path": one.path, "kind": one.kind, "size": one.size} for one in entries]}

    async def new_box(ctx: Ctx, image: Annotated[str | None, Field(max_length=400)] = None) -> dict[str, Any]:
        """Create another empty box, from an image if the host allows it."""
        return {"box": await _told(boxes.create(client_of(ctx), image))}

    async def fork_box(ctx: Ctx, box: Box = DEFAULT, count: Annotated[int, Field(ge=1, le=32)] = 1) -> dict[str, Any]:
        """Copy a box with its files and the memory of its interpreter. The copies continue independently."""
        return {"boxes": await _told(boxes.fork(client_of(ctx), box, count))}

    async def close_box(ctx: Ctx, box: Box = DEFAULT) -> dict[str, Any]:
        """Close a box and delete its files."""
        await _told(boxes.close(client_of(ctx), box))
        return {"closed": box}

    async def list_boxes(ctx: Ctx) -> dict[str, Any]:
        """List your boxes."""
        return {"boxes": boxes.names(client_of(ctx))}

    every = (run_code, run_command, write_file, read_file, list_files, new_box, fork_box, close_box, list_boxes)
    return {tool.__name__: tool for tool in every}


async def _told(awaitable: Awaitable[T]) -> T:
    """Tell the model about a mistake or a failure, instead of "Error executing tool"."""
    try:
        return await awaitable
    except HarenaError as error:
        raise ToolError(str(error)) from error


async def serve_stdio(options: McpOptions, tools: tuple[str, ...] = ()) -> None:
    boxes = ClientBoxes(options)
    try:
        await server(boxes, tools=tools).run_stdio_async()
    finally:
        await boxes.close_all()


async def serve_http(options: McpOptions, tokens: Tokens, host: str, port: int, tools: tuple[str, ...] = ()) -> None:
    """Serve the endpoint /mcp. Requests without a valid token get 401. A request carries all it needs (no MCP session),
    so a client that reconnects finds its boxes again."""
    boxes = ClientBoxes(options)
    app = server(boxes, tokens, tools=tools).streamable_http_app(
        host=host, json_response=True, stateless_http=True, max_request_body_size=MAX_BODY
    )
    try:
        await uvicorn.Server(uvicorn.Config(_Gate(app, tokens), host=host, port=port, log_level="warning")).serve()
    finally:
        await boxes.close_all()


class _Gate:
    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            header = dict(scope["headers"]).get(b"authorization")
            owner = self._tokens.owner(header)
            if owner is None or not self._tokens.allows(owner, tokens_file.TokenScope.RUN):
                refusal = JSONResponse({"error": "give a valid token: Authorization: Bearer TOKEN"}, status_code=401)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)
