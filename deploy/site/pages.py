"""Hook of mkdocs: pages that are made from the code when the site is built, so that none of them can be out of date.

Command line from the parser, settings from the tables of variables, Python from the public names, REST from OpenAPI.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "Boxes of this machine": "harena.backends.local.variables",
    "Boxes in Docker containers": "harena.backends.docker.variables",
    "Images": "harena.images.settings",
    "Matches": "harena.match.variables",
    "Arena": "harena.arena.variables",
}
READS = re.compile(r"(?:environ(?:\.get\(|\[)|getenv\()\s*[\"'](HARENA_[A-Z_]+)")


def settings() -> str:
    lines = [
        "# Settings",
        "",
        "Environment variables, made from the tables that the code reads. In brackets: the default.",
        "",
    ]
    named: set[str] = set()
    for title, module in SETTINGS.items():
        variables: dict[str, str] = importlib.import_module(module).VARIABLES
        named |= set(variables)
        lines += [f"## {title}", "", "| variable | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in variables.items()] + [""]
    others = sorted(elsewhere() - named)
    lines += ["## Others", "", "| variable | read in |", "|---|---|"]
    lines += [f"| `{name}` | {', '.join(f'`{place}`' for place in places(name))} |" for name in others]
    limits = importlib.import_module("harena.sandbox.spec").Limits
    lines += ["", "## Limits of a box", "", "Fields of `harena.Limits`.", "", "| field | default |", "|---|---|"]
    lines += [f"| `{name}` | {getattr(limits(), name)} |" for name in limits.__dataclass_fields__]
    return "\n".join([*lines, ""])


def elsewhere() -> set[str]:
    """Variables that some module reads by name."""
    return {name for path in _sources() for name in READS.findall(path.read_text())}


def places(variable: str) -> list[str]:
    found = [path for path in _sources() if variable in READS.findall(path.read_text())]
    return [str(path.relative_to(ROOT / "src" / "harena")) for path in found]


def _sources() -> list[Path]:
    skipped = ("testing", "guest")
    paths = (ROOT / "src" / "harena").rglob("*.py")
    return sorted(path for path in paths if not set(skipped) & set(path.parts))


def python_api() -> str:
    import harena

    groups: dict[str, list[str]] = defaultdict(list)
    for name in harena.__all__:
        value = getattr(harena, name)
        kind = "Errors" if inspect.isclass(value) and issubclass(value, BaseException) else "Boxes, pools and sessions"
        groups[kind].append(f"{value.__module__}.{name}")
    groups["Client of an arena"] = ["harena.client.blocking.ArenaClient"]
    lines = ["# Python", "", "Made from the public names of `harena`.", ""]
    for title in ("Boxes, pools and sessions", "Client of an arena", "Errors"):
        lines += [f"## {title}", "", *(f"::: {name}\n" for name in groups[title])]
    return "\n".join(lines)


def rest() -> str:
    from harena.api.app import create_app
    from harena.arena.arena import Arena, Roles
    from harena.arena.settings import Settings

    nothing = Roles(workers=False, matchmaker=False)
    with tempfile.TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/arena.db"
        settings = Settings(data=Path(folder), database_url=database, secret_key=bytes(32))  # nobody signs in
        with Arena(settings, nothing) as arena:
            return rest_page(create_app(arena, loopback=True).openapi())


def rest_page(document: dict[str, Any]) -> str:
    lines = ["# REST", "", "Made from the OpenAPI document of `harena up`, which it serves at `/openapi.json`.", ""]
    for path, item in sorted(document["paths"].items()):
        for method, operation in item.items():
            lines += [f"## {method.upper()} {path}".replace("{", "\\{"), "", operation.get("summary", ""), ""]
            described = (operation.get("description") or "").strip()
            lines += [described, ""] if described and described != operation.get("summary") else []
            parameters = operation.get("parameters", [])
            if parameters:
                lines += ["| parameter | in | type | needed |", "|---|---|---|---|"]
                lines += [
                    f"| `{one['name']}` | {one['in']} | {_kind(one.get('schema', {}))} | "
                    f"{'yes' if one.get('required') else 'no'} |"
                    for one in parameters
                ]
                lines.append("")
            for kind, body in operation.get("requestBody", {}).get("content", {}).items():
                lines += [f"Body: `{kind}`, {_kind(body.get('schema', {}))}", ""]
            good = {code: answer for code, answer in operation["responses"].items() if code.startswith("2")}
            for code, answer in good.items():
                content = ", ".join(
                    f"`{kind}` {_kind(body.get('schema', {}))}" for kind, body in answer.get("content", {}).items()
                )
                lines += [f"Answer {code}: {content or 'no body'}", ""]
    return "\n".join(lines)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def cli() -> str:
    from harena.cli import reference

    return reference.markdown()


PAGES = {
    "reference/cli.md": cli,
    "reference/settings.md": settings,
    "reference/api.md": python_api,
    "reference/rest.md": rest,
}


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to what is in the repository but not on the site become its path."""
    if "/" in page.file.src_uri:  # `..` is still on the site
        return markdown
    text = re.sub(r"\[[^\]]+\]\(\.\./([^)#]+)[^)]*\)", r"`\1`", markdown)
    return re.sub(r"\[[^\]]+\]\(adr/?\)", "`docs/adr`", text)
