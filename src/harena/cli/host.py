"""`harena doctor`, `bench`, `boxes`, `version`, `completion` and `man`: this machine, and the command itself."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from harena.cli import UNAVAILABLE
from harena.command import print_json

if TYPE_CHECKING:
    from harena.sandbox.doctor import Report


def doctor(args: argparse.Namespace) -> int:
    from harena.sandbox.doctor import run_doctor

    with _progress("probing") as progress:
        report = run_doctor(image=args.image, progress=progress)
    if args.json:
        print_json(report.to_json())
    else:
        print(doctor_text(report))
    if report.missing is not None:
        return UNAVAILABLE
    return 0 if report.ok else 1


def summary(report: Report) -> str:
    """Say in one line whether untrusted code may run here."""
    failed = sum(not probe.held for probe in report.probes)
    if report.missing is not None:
        return "Not fine: no box can be created on this machine."
    if not report.ok:
        return f"Not fine: {failed} of {len(report.probes)} attacks on a box did not hold. Run no untrusted code here."
    tier = report.enforcement["isolation"].partition(";")[0]
    return f"Fine: all {len(report.probes)} attacks on a box with {tier} isolation were stopped."


def doctor_text(report: Report) -> str:
    lines = [summary(report), ""]
    lines += [f"{name:<10} {value}" for name, value in report.enforcement.items()]
    lines += [f"note       {note}" for note in report.notes]
    if report.missing is not None:
        lines += ["", f"No box can be created: {report.missing}"]
        # The default fix is to run the doctor, which is running already.
        return "\n".join(lines if "harena doctor" in (report.fix or "") else [*lines, f"Fix: {report.fix}"])
    width = max((len(probe.name) for probe in report.probes), default=0)
    group = ""
    for probe in report.probes:
        if group != (group := probe.name.split(".")[0]):
            lines.append("")
        lines.append(f"{'held' if probe.held else 'FAILED':<6}  {probe.name:<{width}}  {probe.detail}")
    held = sum(probe.held for probe in report.probes)
    lines += ["", f"{held} of {len(report.probes)} held"]
    if not report.ok:
        lines[-1] += f", {len(report.probes) - held} FAILED: read them before you run untrusted code here"
    return "\n".join(lines)


def bench(args: argparse.Namespace) -> int:
    if args.what == "match":
        from harena.match import bench
    elif args.what == "service":
        from harena.serve import bench
    else:
        from harena.sandbox import bench

    return bench.main(quick=args.quick, json_file=args.json)


def boxes(args: argparse.Namespace) -> int:
    boxes = live_boxes()
    if args.json:
        print_json(boxes)
    elif not boxes:
        print("no live boxes")
    else:
        print(f"{'box':<14} {'owner':>7}  command")
        for box in boxes:
            print(f"{box['id']:<14} {box['owner']:>7}  {box['command']}")
    return 0


def live_boxes() -> list[dict[str, Any]]:
    """List running boxes from the records of the local backend: one file for each box, which names its owner."""
    folder = importlib.import_module("harena.backends.local.launch.registry").folder()
    boxes: list[dict[str, Any]] = []
    for path in sorted(folder.iterdir()):
        with contextlib.suppress(OSError, ValueError):  # it has just ended
            owner = int(path.read_text().split()[0])
            with open(f"/proc/{owner}/cmdline", "rb") as file:
                words = file.read(200).replace(b"\0", b" ").decode("utf-8", "replace")
            command = "".join(letter if letter.isprintable() else "?" for letter in words).strip()
            boxes.append({"id": path.name, "owner": owner, "command": command})
    return boxes


def version(args: argparse.Namespace) -> int:
    from harena import __version__

    if args.json:
        print_json({"version": __version__, "python": ".".join(map(str, sys.version_info[:3]))})
    else:
        print(f"harena {__version__}")
    return 0


def completion(args: argparse.Namespace) -> int:
    from harena.cli import reference

    print(reference.completion(args.shell), end="")
    return 0


def man(args: argparse.Namespace) -> int:
    from harena.cli import reference

    print(reference.man(), end="")
    return 0


@contextlib.contextmanager
def _progress(label: str) -> Generator[Callable[[int, int], None] | None]:
    """Show a progress counter, only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return

    def show(done: int, total: int) -> None:
        print(f"\r{label} {done}/{total} ", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
