"""Actions of `harena image`. Nothing that an image's author wrote controls the terminal."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
import time
from typing import Any, TextIO

from harena.command import print_json
from harena.errors import SpecError
from harena.images.errors import ImageNotFound
from harena.images.reference import Digest, Reference
from harena.images.store.image_store import ImageStore, Reclaimed
from harena.images.store.leases import LAYER, TREE, Image
from harena.terminal import safe, table

REDRAW_S = 0.1
NARROWEST, WIDEST = 5, 30


def pull_image(args: argparse.Namespace) -> int:
    store = ImageStore.default()
    pulled: list[dict[str, Any]] = []
    for name in args.images:
        reference = Reference.parse(name)
        with Bar(f"pulling {reference.familiar}", is_on=not (args.json or args.quiet)) as bar:
            image = store.pull(reference, platform=args.platform, progress=bar.show)
        pulled.append(_fields(image))
        if args.quiet:
            print(image.digest)
        elif not args.json:
            print(f"{safe(reference.familiar)}: {image.digest}, {len(image.layers)} layers, {_size(image.size_bytes)}")
    if args.json:
        print_json(pulled)
    return 0


def import_image(args: argparse.Namespace) -> int:
    store = ImageStore.default()
    with Bar(f"importing {args.path}", is_on=not args.json) as bar:
        found = store.import_file(
            args.path, name=args.name, platform=args.platform, is_root=True if args.root else None, progress=bar.show
        )
    if args.json:
        print_json([_fields(image) for image in found])
    else:
        for image in found:
            name = Reference.parse(image.reference).familiar
            print(f"{safe(name)}: {image.digest}, {len(image.layers)} layers, {_size(image.size_bytes)}")
    return 0


def build_image(args: argparse.Namespace) -> int:
    from harena.images.build import ROOT_MB, build
    from harena.images.builder.export import export_image

    given: dict[str, str] = {}
    for text in args.build_arg:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--build-arg {text!r:.80}: expected NAME=VALUE")
        given[name] = value
    store = ImageStore.default()
    report = None if args.quiet or args.json else _Steps().show
    image = build(
        store, args.context, file=args.file, name=args.tag, args=given, target=args.target,
        use_cache=not args.no_cache, network=args.network, root_mb=args.root_mb or ROOT_MB, report=report,
    )  # fmt: skip
    exported = export_image(image, args.output) if args.output else None
    if args.json:
        print_json(
            {**_fields(image), **({"archive": args.output, "archive_digest": str(exported)} if exported else {})}
        )
    elif args.quiet:
        print(image.digest)
    else:
        name = Reference.parse(image.reference).familiar
        print(f"{safe(name)}: {image.digest}, {len(image.layers)} layers, {_size(image.size_bytes)}")
    return 0


def export_image(args: argparse.Namespace) -> int:
    from harena.images.builder.export import export_image as export

    store = ImageStore.default()
    reference = Reference.parse(args.image)
    image = store.find(reference, platform=args.platform)
    if image is None:
        raise ImageNotFound(f"there is no image {reference.familiar} here: `harena image pull {reference.familiar}`")
    digest = export(image, args.path)
    if args.json:
        print_json({**_fields(image), "archive": args.path, "archive_digest": str(digest)})
    else:
        print(f"{safe(args.path)}: {digest}")
    return 0


class _Steps:
    """Steps of a build and the output of its commands, on stderr."""

    def show(self, kind: str, text: str) -> None:
        for line in text.rstrip("\n").split("\n"):
            mark = {"step": "==> ", "cached": "==> cached: ", "output": "    ", "done": "==> built "}[kind]
            print(mark + safe(line), file=sys.stderr, flush=True)


def ls_image(args: argparse.Namespace) -> int:
    images = ImageStore.default().images()
    if args.json:
        print_json([_fields(image) for image in images])
    elif not images:
        print("no images: `harena image pull NAME` gets one")
    else:
        rows = [
            [
                Reference.parse(image.reference).familiar,
                Digest.parse(image.digest).short,
                image.platform,
                str(len(image.layers)),
                _size(image.size_bytes),
                _ago(image.used_at_s),
            ]
            for image in images
        ]
        head = ["image", "digest", "platform", "layers", "size", "last used"]
        print(table(head, rows, left=["image", "digest", "platform"]))
    return 0


def inspect_image(args: argparse.Namespace) -> int:
    store = ImageStore.default()
    reference = Reference.parse(args.image)
    image = store.find(reference, platform=args.platform)
    if image is None:
        raise ImageNotFound(f"there is no image {reference.familiar} here: `harena image pull {reference.familiar}`")
    layers = [
        {
            "diff_id": str(layer.diff_id),
            "digest": str(layer.digest),
            "compressed_bytes": layer.size,
            "bytes": store.layers.bytes_of(layer.diff_id),
            "folder": str(store.layers.folder_of(layer.diff_id) / LAYER / TREE),
        }
        for layer in image.layers
    ]
    # Always JSON: ASCII only, so that nothing in it reaches the terminal as a control sequence.
    print_json({**_fields(image), "config": image.config.as_json(), "layers": layers})
    return 0


def rm_image(args: argparse.Namespace) -> int:
    store = ImageStore.default()
    done = [store.remove(name, platform=args.platform) for name in args.images]
    return _report(args, _sum(done))


def gc_image(args: argparse.Namespace) -> int:
    most = None if args.max_gb is None else int(args.max_gb * 1e9)
    return _report(args, ImageStore.default().gc(max_bytes=most))


def _sum(done: list[Reclaimed]) -> Reclaimed:
    images = tuple(name for one in done for name in one.images)
    in_use = done[-1].in_use if done else 0
    return Reclaimed(images, sum(one.layers for one in done), sum(one.bytes for one in done), in_use)


def _report(args: argparse.Namespace, done: Reclaimed) -> int:
    if args.json:
        print_json(done.as_json())
        return 0
    for name in done.images:
        print(f"removed {safe(Reference.parse(name).familiar)}")
    print(f"{done.layers} layers removed, {_size(done.bytes)} freed")
    if done.in_use:
        print(f"{done.in_use} layers stay because boxes use them: run `harena image gc` later")
    return 0


def _fields(image: Image) -> dict[str, Any]:
    return {
        "reference": image.reference,
        "digest": image.digest,
        "id": image.id,
        "platform": image.platform,
        "layers": len(image.layers),
        "bytes": image.size_bytes,
        "used_at_s": image.used_at_s,
    }


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _ago(at_s: float) -> str:
    seconds = max(0.0, time.time() - at_s)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return "now" if seconds < 5 else f"{seconds:.0f} s ago"


class Bar:
    """Progress of all layers together, as one line on stderr if that is a terminal; else nothing."""

    def __init__(self, label: str, *, is_on: bool, stream: TextIO | None = None) -> None:
        self._label = safe(label)
        self._stream = stream or sys.stderr
        self._is_on = is_on and self._stream.isatty()
        self._lock = threading.Lock()
        self._layers: dict[str, tuple[str, int, int]] = {}
        self._started = self._shown_at = time.monotonic()

    def show(self, stage: str, layer: str, done: int, total: int) -> None:
        if not self._is_on:
            return
        with self._lock:
            self._layers[layer] = stage, done, total
            now = time.monotonic()
            if now - self._shown_at < REDRAW_S:
                return
            self._shown_at = now
            columns = shutil.get_terminal_size().columns
            print("\r\033[K" + self._line(columns - 1), end="", file=self._stream, flush=True)

    def _line(self, columns: int) -> str:
        states = list(self._layers.values())
        total = sum(size for _, _, size in states)
        # A layer is downloaded, then unpacked: each is half of its way.
        got = sum(size if stage in ("unpack", "done") else done for stage, done, size in states)
        unpacked = sum(size if stage == "done" else done for stage, done, size in states if stage in ("unpack", "done"))
        ready = sum(stage == "done" for stage, _, _ in states)
        numbers = f" {_size(got)}/{_size(total)}, {ready}/{len(states)} layers"
        if any(stage == "wait" for stage, _, _ in states):
            numbers += ", waiting for another process"
        width = min(WIDEST, columns - len(self._label) - len(numbers) - 3)
        filled = width * (got + unpacked) // max(2 * total, 1)
        bar = f" [{'#' * filled}{'.' * (width - filled)}]" if width >= NARROWEST else ""
        return (self._label[: max(0, columns - len(numbers))] + bar + numbers)[:columns]

    def __enter__(self) -> Bar:
        if self._is_on:
            print(self._label, end="", file=self._stream, flush=True)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._is_on:
            print("\r\033[K", end="", file=self._stream, flush=True)
