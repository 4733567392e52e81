"""Writes the bill of materials of a release as CycloneDX 1.6: what is compiled into the wheels, and what each extra
installs beside them. The same packages give the same bytes.

    python deploy/release/sbom.py dist
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MUSL = "1.2.5"  # the one in zig's lib/libc/musl, compiled into harena-box and harena-seat


def bill(project: dict[str, Any], packages: list[Path]) -> dict[str, Any]:
    own = f"pkg:pypi/harena@{project['version']}"
    compiled = [
        {
            "type": "library",
            "bom-ref": f"pkg:generic/musl@{MUSL}",
            "name": "musl",
            "version": MUSL,
            "purl": f"pkg:generic/musl@{MUSL}",
            "scope": "required",
            "licenses": [{"license": {"id": "MIT"}}],
            "description": "linked into harena-box and harena-seat",
        }
    ]
    extras = _requirements(project["optional-dependencies"])
    optional = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}",
            "name": name,
            "purl": f"pkg:pypi/{name}",
            "scope": "optional",
            "properties": [
                {"name": "harena:versions", "value": ", ".join(sorted(found["versions"]))},
                {"name": "harena:extras", "value": ", ".join(sorted(found["extras"]))},
            ],
        }
        for name, found in sorted(extras.items())
    ]
    files = [
        {
            "type": "file",
            "bom-ref": f"file:{path.name}",
            "name": path.name,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        }
        for path in packages
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "harena",
                "version": project["version"],
                "purl": own,
                "licenses": [{"license": {"id": project["license"]}}],
            },
            "tools": {"components": [{"type": "application", "name": "zig", "version": version("ziglang")}]},
        },
        "components": [*compiled, *files, *optional],
        "dependencies": [{"ref": own, "dependsOn": [compiled[0]["bom-ref"]]}],
    }


def _requirements(extras: dict[str, list[str]]) -> dict[str, dict[str, set[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    for extra, lines in extras.items():
        for line in lines if extra not in ("dev", "docs", "release") else ():
            name, range_ = re.fullmatch(r"([\w.-]+)(?:\[[^\]]*\])?([^;]*)(?:;.*)?", line).groups()  # pyright: ignore
            if name != "harena":
                one = found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), {"versions": set(), "extras": set()})
                one["versions"].add(range_.strip() or "any")
                one["extras"].add(extra)
    return found


def main() -> None:
    out = Path(sys.argv[1])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    packages = sorted([*out.glob("*.whl"), *out.glob("*.tar.gz")])
    text = json.dumps(bill(project, packages), indent=2, sort_keys=True) + "\n"
    (out / f"harena-{project['version']}.cdx.json").write_text(text)


if __name__ == "__main__":
    main()
