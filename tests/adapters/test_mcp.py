"""`harena mcp`, called by the real MCP client library over stdio and over HTTP."""

from __future__ import annotations

import contextlib
import socket
import sys
import time

import pytest

pytest.importorskip("mcp", reason="mcp is not installed: pip install 'harena[mcp]'")

import anyio
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from harena import SpecError
from harena.adapters.mcp_boxes import McpOptions

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]
COMMAND = [sys.executable, "-m", "harena", "mcp"]
ANN, BOB, EVE = "a" * 30, "b" * 30, "e" * 30


@pytest.fixture
def anyio_backend():
    return "asyncio"


def over_stdio(*options: str) -> Client:
    return Client(stdio_client(StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *options])))


@contextlib.asynccontextmanager
async def over_http(port: int, token: str):
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(f"http://127.0.0.1:{port}/mcp", http_client=http)) as client,
    ):
        yield client


@pytest.fixture
async def port(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ann {ANN}\nbob {BOB}\n")
    tokens.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free = probe.getsockname()[1]
    options = ["--http", f"127.0.0.1:{free}", "--token-file", str(tokens), "--max-boxes", "3"]
    process = await anyio.open_process([*COMMAND, *options], stdout=None, stderr=None)
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", free), timeout=1).close()
            break
        except OSError:
            assert process.returncode is None, "the server ended"
            assert time.monotonic() < deadline, "the server did not start"
            await anyio.sleep(0.05)
    yield free
    process.terminate()
    await process.wait()
    await process.aclose()


async def call(client: Client, tool: str, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


async def refusal(client: Client, tool: str, **arguments) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return result.content[0].text


async def test_a_model_runs_code_and_commands_and_moves_files():
    async with over_stdio() as client:
        assert {tool.name for tool in (await client.list_tools()).tools} >= {"run_code", "run_command", "fork_box"}
        await call(client, "run_code", code="x = 41")
        assert (await call(client, "run_code", code="print(x + 1)"))["stdout"] == "42\n"
        await call(client, "write_file", path="a/b.txt", text="hällo")
        assert (await call(client, "run_command", command="cat a/b.txt; exit 3"))["exit_code"] == 3
        assert await call(client, "read_file", path="a/b.txt") == {"text": "hällo"}
        assert (await call(client, "list_files", path="a"))["entries"] == [{"path": "b.txt", "kind": "file", "size": 6}]
        assert "b.txt" not in str(await call(client, "run_command", command="ls /root /home; cat /etc/shadow; true"))
        assert (await call(client, "run_code", code="while True: pass", timeout_s=0.3))["verdict"] == "time"


async def test_forks_continue_apart_from_each_other():
    async with over_stdio() as client:
        await call(client, "run_code", code="x = 1")
        left, right = (await call(client, "fork_box", count=2))["boxes"]
        await call(client, "run_code", code="x += 1", box=left)
        assert (await call(client, "run_code", code="print(x)", box=left))["stdout"] == "2\n"
        assert (await call(client, "run_code", code="print(x)", box=right))["stdout"] == "1\n"


async def test_only_allowed_tools_and_images_are_offered():
    async with over_stdio("--tool", "run_code", "--tool", "new_box") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == {"run_code", "new_box"}
        assert "is not allowed" in await refusal(client, "new_box", image="debian:12")
        assert (await client.call_tool("run_command", {"command": "true"})).is_error


@pytest.mark.parametrize("image", ["python.attacker.example/x:3.1", "python:80/x", f"python@sha256:{'0' * 64}"])
def test_a_pattern_allows_no_other_registry_and_no_digest(image):
    options = McpOptions(images=("python:3.*", "python*:3.1"))
    with pytest.raises(SpecError, match="is not allowed"):
        options.spec(image)
    assert options.spec("python:3.12").image == "python:3.12"


async def test_clients_over_http_cannot_reach_the_boxes_of_others(port):
    async with over_http(port, ANN) as ann, over_http(port, BOB) as bob:
        await call(ann, "run_code", code="secret = 7")
        assert (await call(bob, "run_code", code="print('secret' in globals())"))["stdout"] == "False\n"
        box = (await call(ann, "new_box"))["box"]
        assert "you have no box" in await refusal(bob, "run_code", code="1", box=box)
        assert await call(bob, "list_boxes") == {"boxes": ["default"]}
    async with over_http(port, ANN) as again:
        assert (await call(again, "run_code", code="print(secret)"))["stdout"] == "7\n"


async def test_a_client_cannot_have_more_boxes_than_allowed(port):
    async with over_http(port, ANN) as client:
        for _ in range(3):
            box = (await call(client, "new_box"))["box"]
        assert "may have 3" in await refusal(client, "new_box")
        assert "may have 3" in await refusal(client, "fork_box", box=box)
        await call(client, "close_box", box=box)
        await call(client, "new_box")


async def test_a_request_without_a_valid_token_is_refused(port):
    async with httpx2.AsyncClient() as http:
        for headers in ({}, {"Authorization": f"Bearer {EVE}"}, {"Authorization": "Basic YTpi"}):
            assert (await http.post(f"http://127.0.0.1:{port}/mcp", json={}, headers=headers)).status_code == 401
