"""docs/client.md: its programs run, its commands are understood, and it names every verb."""

from __future__ import annotations

import inspect
import pydoc
import re
import shlex
from pathlib import Path

import pytest

from harena import cli
from harena.client import ArenaClient, AsyncArenaClient, account_calls, calls
from harena.client.verbs import Verbs
from support.client_world import LEFT

TEXT = (Path(__file__).parents[2] / "docs" / "client.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def test_every_verb_is_in_the_table():
    named = set(re.findall(r"`(\w+)`", "\n".join(line for line in TEXT.splitlines() if line.startswith("| `"))))
    verbs = {name for name in vars(Verbs) if not name.startswith("_")}
    assert named == verbs | {"wait", "watch", "live", "export_stream"}


@pytest.mark.parametrize("kind", [ArenaClient, AsyncArenaClient])
def test_help_of_a_clients_verb_shows_its_words_and_arguments(kind):
    client = kind("http://127.0.0.1:9")
    for name in (name for name in vars(Verbs) if not name.startswith("_")):
        verb, call = getattr(client, name), getattr(calls, name, None) or getattr(account_calls, name)
        assert (verb.__name__, verb.__doc__) == (name, call.__doc__)
        assert inspect.signature(verb).parameters == inspect.signature(call).parameters
    shown = pydoc.plain(pydoc.render_doc(client.submit))
    assert "submit(" in shown
    assert "env_id" in shown


@pytest.mark.parametrize("program", PROGRAMS[:2])
def test_the_programs_run(served, program, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("HARENA_URL", served.url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").write_text(LEFT)
    exec(compile(program, "client.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("line", re.findall(r"^(harena .*?)(?:  +#.*)?$", TEXT, re.M))
def test_the_commands_are_understood(line):
    words = shlex.split(line)[1:]
    args = cli._parser(words[:1]).parse_args(words)
    assert callable(args.action)
