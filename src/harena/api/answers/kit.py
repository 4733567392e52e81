"""Starter kit of an environment: a zip with an agent that plays, the rules and how to try it. Made from what everybody
may see; the same environment gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harena import schema
from harena.arena.submissions.intake import zip_of

AGENT = '''"""An agent for {env_id}. Change act(), try it with `harena validate --env {env_id} agent.py`, submit it."""

import random


class Agent:
    def act(self, observation):
        {body}
'''
README = """# {title}

Environment `{env_id}`.

{rules}

## What an agent sees and does

- Observation: `{observation}`
- Action: `{action}`

## Try it here

    pip install 'harena[gym]'
    harena validate --env {env_id} agent.py

## Submit it

    harena submit agent.py --env {env_id} --algorithm "My agent"

or choose the file on the arena's page.
"""


def kit(of: schema.EnvironmentDetails) -> bytes:
    agent = of.sample_agent or AGENT.format(env_id=of.env_id, body=_body(of.action))
    readme = README.format(
        title=of.title,
        env_id=of.env_id,
        rules=of.rules or of.summary,
        observation=json.dumps(of.observation),
        action=json.dumps(of.action),
    )
    cells = [_cell("markdown", readme), _cell("code", agent), _cell("code", _try_out(of.env_id))]
    notebook: dict[str, Any] = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return zip_of(
        {
            "agent.py": agent.encode("utf-8", "replace"),
            "README.md": readme.encode("utf-8", "replace"),
            "notebook.ipynb": json.dumps(notebook, indent=1).encode(),
        }
    )


def _cell(kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {"cell_type": kind, "id": f"{kind}-{len(text)}", "metadata": {}, "source": text}
    return cell | ({"outputs": [], "execution_count": None} if kind == "code" else {})


def _try_out(env_id: str) -> str:
    return f"!harena validate --env {env_id} agent.py"


def _body(action: Mapping[str, Any] | None) -> str:
    if action and action.get("kind") == "discrete":
        return f"return random.randrange({action.get('start') or 0}, {(action.get('start') or 0) + action['n']})"
    shape: Any = (action or {}).get("shape")
    if action and action.get("kind") == "box" and shape and len(shape) == 1:
        return f"return [0.0] * {shape[0]}"
    return 'raise NotImplementedError("choose an action")'
