"""Builds images from Dockerfiles, without Docker. `builder` has the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from harena.images.builder.builder import ROOT_MB as ROOT_MB
from harena.images.builder.builder import Builder, Report, RunStep
from harena.images.builder.builder import BuildFailed as BuildFailed
from harena.images.builder.dockerfile import DockerfileError
from harena.images.reference import Reference
from harena.images.store.image_store import ImageStore
from harena.images.store.layers import Progress
from harena.images.store.leases import Image


def build(
    store: ImageStore,
    context: Path | str,
    *,
    file: Path | str | None = None,
    name: str | None = None,
    args: Mapping[str, str] | None = None,
    target: str | None = None,
    use_cache: bool = True,
    network: Sequence[str] = (),
    root_mb: int = ROOT_MB,
    report: Report | None = None,
    progress: Progress | None = None,
    run_step: RunStep | None = None,
) -> Image:
    """Build the Dockerfile of a folder, and store the image by `name`, or by its id."""
    builder = Builder(
        store, Path(context), file=file, args=args or {}, target=target, use_cache=use_cache, network=network,
        root_mb=root_mb, report=report or (lambda kind, text: None), progress=progress, run_step=run_step,
    )  # fmt: skip
    reference = Reference.parse(name) if name else None
    if reference is not None and reference.digest is not None:
        raise DockerfileError(f"{name!r:.160}: a built image is named by a tag, not by a digest")
    with builder:
        return builder.run(reference)
