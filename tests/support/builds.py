"""Builds in a store of their own, for the tests of `harena image build`."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import Sandbox, Spec
from harena.images import Image, ImageStore
from harena.images.build import build
from harena.images.builder.export import export_image
from support.roots import busybox_entries, write_tar


class Builds:
    """Builds in one store. `steps` and `cached` say what the last one did, `output` what its commands wrote."""

    def __init__(self, store: ImageStore, context: Path) -> None:
        self.store, self.context = store, context
        self.steps: list[str] = []
        self.cached: list[str] = []
        self.output = ""

    def __call__(self, text: str, **options: object) -> Image:
        self.context.mkdir(exist_ok=True)
        (self.context / "Dockerfile").write_text(text)
        self.steps, self.cached, self.output = [], [], ""
        name = options.pop("name", "built:1")
        return build(self.store, self.context, name=name, report=self._report, **options)  # type: ignore[arg-type]

    def _report(self, kind: str, text: str) -> None:
        if kind == "output":
            self.output += text
        else:
            {"step": self.steps, "cached": self.cached}.get(kind, []).append(text)

    def file(self, name: str, content: str | bytes = "content", mode: int = 0o644) -> Path:
        path = self.context / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)
        return path


@pytest.fixture(scope="module", name="store")
def built_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageStore]:
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARENA_IMAGES", str(folder / "store"))
        store = ImageStore.default()
        entries = {**busybox_entries(), "tmp": None, "run": None, "var": None, "var/run": "../run"}
        store.import_file(write_tar(folder / "base.tar", entries, {"tmp": 0o1777}), name="base:1", is_root=True)
        yield store


@pytest.fixture(name="builds")
def builds_of_store(store: ImageStore, tmp_path: Path) -> Builds:
    return Builds(store, tmp_path / "context")


def shell(image: Image, line: str, **spec: object) -> str:
    with Sandbox(Spec(image=image.reference, **spec)) as box:  # type: ignore[arg-type]
        result = box.exec(["/bin/sh", "-c", line], cwd="/")
        assert result.ok, (line, result)
        return result.stdout.decode()


def layer_members(image: Image, number: int, folder: Path) -> dict[str, tarfile.TarInfo]:
    """Members of a layer of the exported image."""
    export_image(image, folder / "exported.tar")
    with tarfile.open(folder / "exported.tar") as archive:
        saved = json.load(archive.extractfile("manifest.json"))  # type: ignore[arg-type]
        data = archive.extractfile(saved[0]["Layers"][number]).read()  # type: ignore[union-attr]
    with tarfile.open(fileobj=io.BytesIO(data)) as layer:
        return {member.name: member for member in layer}
