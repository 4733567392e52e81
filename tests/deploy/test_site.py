"""The documentation: its programs run, its commands are understood, its links lead somewhere, and the site builds."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harena import cli

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
NEW = [DOCS / name for name in ("install.md", "sandbox.md", "troubleshooting.md", "upgrade.md")]
NEW += sorted((DOCS / "tutorials").glob("*.md"))


def programs() -> list[tuple[str, str]]:
    found = [(path, text) for path in NEW for text in re.findall(r"```python\n(.*?)```", path.read_text(), re.S)]
    return [(f"{path.stem}-{number}", text) for number, (path, text) in enumerate(found)]


def commands() -> list[str]:
    lines = [line for path in NEW for line in path.read_text().splitlines() if line.startswith("harena ")]
    return sorted({re.split(r"\s{2,}#|\s#\s| \| ", line)[0].strip() for line in lines})


@pytest.mark.parametrize("program", [text for _, text in programs()], ids=[name for name, _ in programs()])
def test_the_programs_run(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("line", commands())
def test_the_commands_are_understood(line: str) -> None:
    words = shlex.split(line)[1:]
    parser = cli._parser(words[:1])
    assert callable(parser.parse_args(words).action)


def slugs(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", head)).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_no_link_is_dead(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor and found.suffix == ".md":
            assert anchor in slugs(found), target


def test_every_page_is_on_the_site() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if "adr" not in path.parts]
    assert [page for page in pages if page not in listed] == []


def test_every_variable_that_the_code_reads_is_among_the_settings() -> None:
    spec = importlib.util.spec_from_file_location("site_pages", ROOT / "deploy" / "site" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    text = pages.settings()
    assert len(pages.elsewhere()) > 10
    assert [name for name in sorted(pages.elsewhere()) if f"`{name}`" not in text] == []
    assert "| `wall_s` | " in text


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert {f"reference/{name}.html" for name in ("cli", "settings", "api", "rest")} <= pages
    assert "SandboxPool" in (tmp_path / "site/reference/api.html").read_text()
    assert "/v1/boards" in (tmp_path / "site/reference/rest.html").read_text()
