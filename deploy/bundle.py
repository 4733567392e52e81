"""Prints k8s/deployment.yaml: the executor's manifests of deploy/k8s in one file, for `kubectl apply -f`."""

from __future__ import annotations

from pathlib import Path

HEAD = "# Made by `make manifests` from deploy/k8s.\n"


def text(folder: Path) -> str:
    return HEAD + "---\n".join(path.read_text() for path in sorted(folder.glob("[0-9]*.yaml")))


if __name__ == "__main__":
    print(text(Path(__file__).parent / "k8s"), end="")
