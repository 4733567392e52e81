"""`harena gradio`: a small page for Spaces and notebooks, over the public client only: submit, status, leaderboard.

Guarantees: every visitor is somebody else to the arena, so that nobody reads another's reasons here; what users wrote
is shown as text, never as HTML; nothing is reported to anybody, and no page of ours asks for a thing from elsewhere as
far as gradio lets us say so (docs/client.md names what is left). A key given at the start speaks for whoever opens the
page: it is only taken while the page listens on this machine alone.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import ipaddress
import os
import socket
import threading
import uuid
from collections.abc import Sequence
from typing import Any

from harena.client import config
from harena.client.blocking import ArenaClient
from harena.client.calls import checked_id
from harena.client.commands import agent_name, score_text, submission_text
from harena.client.errors import ArenaError
from harena.client.upload import MAX_TOTAL
from harena.errors import SpecError
from harena.terminal import safe, safe_lines

HEAD = ("rank", "owner", "agent", "score", "low", "high", "games")
LINES = 100
ENTRIES = ("agent.py", "main.py", "submission.py")
FONTS = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")
CACHE_S = 3600
"""Uploads are deleted when they are this old; the arena has its own copy."""


class GradioPage:
    """What the buttons do: texts in, texts out. A mistake is a text too: gradio would show an exception as HTML."""

    def __init__(self, url: str | None = None, *, key: str | None = None) -> None:
        self.url = config.arena_url(url)
        self._key = config.api_key(key)

    def environments(self) -> list[str]:
        try:
            with self._client() as client:
                return [environment.env_id for environment in client.environments()]
        except ArenaError:
            return []

    def submit(
        self, files: Sequence[str] | None, env_id: str, algorithm: str, name: str, key: str, who: str, main: str = ""
    ) -> tuple[str, str, str]:
        """What happened, the id of the submission, and who this visitor is from now on."""
        who = who or str(uuid.uuid4())
        try:
            with self._client(key, who) as client:
                sent = client.submit(
                    list(files or ()),
                    env_id or "",
                    algorithm=algorithm.strip() or "Custom",
                    main_file=(main or "").strip() or None,
                    owner=name.strip() or None,
                )
        except (ArenaError, SpecError) as error:
            return safe_lines(str(error)), "", who
        return f"{agent_name(sent)} for {safe(sent.env_id)}: {sent.state}", sent.id, who

    def status(self, submission_id: str, key: str, who: str) -> str:
        try:
            with self._client(key, who) as client:
                return submission_text(client.status(checked_id(submission_id.strip(), "submission")))
        except (ArenaError, SpecError) as error:
            return safe_lines(str(error))

    def leaderboard(self, env_id: str) -> tuple[str, list[list[str]]]:
        """A line about it, and the table."""
        try:
            with self._client() as client:
                board = client.leaderboard(env_id or "", limit=LINES)
        except (ArenaError, SpecError) as error:
            return safe_lines(str(error)), []
        rows = [
            [
                str(entry.rank),
                safe(entry.owner),
                safe(f"{entry.algorithm} v{entry.version}"),
                *(score_text(value, None, None) for value in (entry.score, entry.low, entry.high)),
                "" if entry.games is None else str(entry.games),
            ]
            for entry in board.entries
        ]
        return f"{safe(board.env_id)}, {safe(board.board)}: {board.total}", rows

    def _client(self, key: str = "", who: str = "") -> ArenaClient:
        # A visitor without a key is known by what his browser keeps, never by what this process would keep.
        return ArenaClient(self.url, key=key.strip() or self._key, client_id=who or str(uuid.uuid4()))


def blocks(page: GradioPage) -> Any:
    """The page as gradio's Blocks, to be launched or mounted elsewhere."""
    gr = _gradio()
    with gr.Blocks(title="Harena", analytics_enabled=False, delete_cache=(CACHE_S, CACHE_S)) as app:
        who = gr.BrowserState("", storage_key="harena-client")
        with gr.Row():
            env = gr.Dropdown(label="Environment", allow_custom_value=True)
            key = gr.Textbox(label="API key, if you have one", type="password")
        with gr.Tab("Leaderboard"):
            title = gr.Textbox(label="Board", interactive=False)
            table = gr.Dataframe(headers=list(HEAD), datatype="str", interactive=False)
            show = gr.Button("Refresh")
        with gr.Tab("Submit"):
            files = gr.File(label="Agent: a .py file, a zip, or several files", file_count="multiple", type="filepath")
            main = gr.Dropdown(label="File that is started, of several", choices=[], allow_custom_value=True)
            algorithm, name = gr.Textbox("Custom", label="Algorithm"), gr.Textbox(label="Your name, without a key")
            send = gr.Button("Submit", variant="primary")
            answer = gr.Textbox(label="Answer", interactive=False)
        with gr.Tab("Status"):
            submission = gr.Textbox(label="Submission")
            look = gr.Button("Look")
            state = gr.Textbox(label="State", lines=8, interactive=False)
        app.load(lambda: _choices(gr, page), outputs=env, api_name="environments")
        show.click(page.leaderboard, env, [title, table], api_name="leaderboard")
        env.change(page.leaderboard, env, [title, table], api_visibility="private")
        files.change(functools.partial(_main_choices, gr), files, main, api_visibility="private")
        sends = [files, env, algorithm, name, key, who, main]
        send.click(page.submit, sends, [answer, submission, who], api_name="submit")
        look.click(page.status, [submission, key, who], state, api_name="status")
    return app


def _choices(gr: Any, page: GradioPage) -> Any:
    names = page.environments()
    return gr.Dropdown(choices=names, value=names[0] if names else None)


def _main_choices(gr: Any, files: Sequence[str] | None) -> Any:
    """The names of Python files, and the one that the arena would start."""
    names = [os.path.basename(path) for path in files or () if path.endswith(".py")] if len(files or ()) > 1 else []
    usual = [name for name in ENTRIES if name in names]
    return gr.Dropdown(choices=names, value=(usual or [""])[0], visible=bool(names))


def launch(app: Any, *, host: str, port: int) -> str:
    """Serves it in a thread, and returns where; `app.close()` ends it."""
    gr = _gradio()
    fonts, mono = FONTS
    theme = gr.themes.Base(font=fonts, font_mono=mono)
    _, local_url, _ = app.launch(
        server_name=host,
        server_port=port,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        inbrowser=False,
        theme=theme,
        footer_links=[],
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        run_history=False,
        max_file_size=MAX_TOTAL,
        show_error=False,
    )
    return local_url


def serve(*, url: str | None, key: str | None, host: str, port: int) -> int:
    page = GradioPage(url, key=key)
    if not _is_local(host) and config.api_key(key):
        raise SpecError(
            f"the page on {host} would let everybody act with your key: leave out the key (also HARENA_KEY), visitors "
            "give their own"
        )
    _check_free(host, port)
    app = blocks(page)
    try:
        launch(app, host=host, port=port)
        print(f"http://{host}:{port} shows {page.url}; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    finally:
        app.close(verbose=False)
    return 0


def _check_free(host: str, port: int) -> None:
    """Before gradio is loaded, which takes seconds."""
    try:
        socket.create_server((host, port)).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{host}:{port} cannot be used: {why}; `harena up` has its page on 7860: --port N") from None


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _gradio() -> Any:
    # It reports home from its import on, unless told before.
    for name, value in (("GRADIO_ANALYTICS_ENABLED", "False"), ("HF_HUB_DISABLE_TELEMETRY", "1")):
        os.environ[name] = value
    return importlib.import_module("gradio")
