"""`harena journal`: show, verify, export or replay the journal of a box. What guests and callers wrote is printed as
plain text that no terminal obeys."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING, Any

from harena.command import print_json
from harena.errors import JournalBroken, SpecError
from harena.terminal import safe, safe_lines

if TYPE_CHECKING:
    from harena.journal.reader import JournalVerification

BROKEN = 1
SHOWN = 100
"""Characters of an action or an output on its line."""
EPILOG = """\
exit codes:
  0    the journal is intact; the replay had the same results
  1    verify: an entry is broken, or the last line is torn; replay: a result differs
  2    a wrong argument, or a file that cannot be read

examples:
  harena journal show run.jsonl --full
  harena journal verify run.jsonl --key key.bin --head 9f86d081884c7d65…
  harena journal export run.jsonl > trajectory.jsonl
  harena journal replay run.jsonl --until 12"""


def fill(name: str, command: argparse.ArgumentParser) -> None:
    command.epilog = EPILOG
    actions = command.add_subparsers(metavar="ACTION", required=True)

    def add(name: str, action: Any, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=text)
        made.add_argument("file", metavar="FILE")
        made.set_defaults(action=action)
        return made

    show = add("show", _show, "print what crossed the border of the box, one line for each action")
    show.add_argument("--full", action="store_true", help="print output and sources in full")
    show.add_argument("--all", action="store_true", help="include listings, snapshots, forks and connections")
    verify = add("verify", _verify, "check every entry, the chain and the stored contents")
    verify.add_argument("--key", metavar="FILE", help="the key that signed the journal")
    verify.add_argument("--head", metavar="SHA256", help="the digest of the last entry, if it was kept elsewhere")
    verify.add_argument("--json", action="store_true", help="print the findings as JSON")
    export = add(
        "export", _export, "print the trajectory as JSON lines: action, observation, reward, done, usage, fault"
    )
    export.add_argument("--all", action="store_true", help="include listings, snapshots, forks and connections")
    replay = add("replay", _replay, "run the recorded actions again in a fresh box, and compare the results")
    replay.add_argument("--until", type=int, metavar="SEQ", help="the last action to run")
    replay.add_argument("--json", action="store_true", help="print the findings as JSON")


def _show(args: argparse.Namespace) -> int:
    from harena.journal.trajectory import steps

    for step in steps(args.file, everything=args.all):
        print(f"{step['seq']:>6}  {safe(step['at'])[11:23]}  {_summary(step)}")
        if args.full:
            for name, text in _texts(step):
                print(f"        {name}:")
                print("\n".join(f"        | {line}" for line in safe_lines(text).splitlines()))
    found = _verified(args.file, None, None)
    print(_finding(found), file=sys.stderr)
    return 0 if found.ok else BROKEN


def _summary(step: dict[str, Any]) -> str:
    action = step["action"]
    seen: dict[str, Any] = step["observation"] or {}
    verb = action["verb"]
    words = (
        {
            "files": f"{action.get('op', '')} {action.get('path', '')}",
            "program": " ".join(one["source"] for one in action.get("sources", ())[:3]),
        }.get(verb)
        or " ".join(action.get("argv") or ())
        or action.get("source")
        or action.get("command")
        or ""
    )
    fault = step["fault"]
    ended = f"{fault['party']} fault {fault['kind']}: {fault['text']}" if fault else seen.get("verdict", "")
    if seen.get("exit_code"):
        ended += f" {seen['exit_code']}"
    if step["usage"] is not None:
        ended += f", {step['usage']['wall_s'] * 1000:.1f} ms"
    if step["reward"] is not None or step["done"]:
        ended += f", reward {step['reward']}{', done' if step['done'] else ''}"
    text = safe(f"{verb:<8} {words}")
    return f"{text if len(text) <= SHOWN else text[: SHOWN - 1] + '…'}  → {safe(ended)[: 3 * SHOWN]}"


def _texts(step: dict[str, Any]) -> list[tuple[str, str]]:
    action = step["action"]
    seen: dict[str, Any] = step["observation"] or {}
    found = [(name, action.get(name)) for name in ("source", "command", "stdin", "data")]
    found += [(f"source {at}", one["source"]) for at, one in enumerate(action.get("sources", ()))]
    found += [(name, seen.get(name)) for name in ("stdout", "stderr", "data", "detail")]
    for at, one in enumerate(seen.get("results", ())):
        found += [(f"{name} {at}", one[name]) for name in ("stdout", "stderr")]
    found += [(one["stream"], one["data"]) for one in seen.get("pieces", ())]
    return [(name, text) for name, text in found if text]


def _verify(args: argparse.Namespace) -> int:
    from harena.journal.writer import read_key

    key = None if args.key is None else read_key(args.key)
    found = _verified(args.file, key, args.head)
    if args.json:
        print_json(dataclasses.asdict(found))
    else:
        print(_finding(found))
    return 0 if found.ok else BROKEN


def _verified(file: str, key: bytes | None, head: str | None) -> JournalVerification:
    from harena.journal.reader import verify

    if head is not None and (len(head) != 64 or not set(head) <= set("0123456789abcdef")):
        raise SpecError("--head: a SHA-256 in 64 hexadecimal letters")
    return verify(file, key=key, head=head)


def _finding(found: JournalVerification) -> str:
    if found.problem:
        return f"entry {found.entries} is broken: {safe(found.problem)}; the {found.entries} before it are intact"
    if found.torn:
        return (
            f"the last line is torn: {found.torn} bytes of entry {found.entries}, whose writing was interrupted; "
            f"the {found.entries} before it are intact"
        )
    signed = "signatures right" if found.signatures_checked else "signatures not checked" if found.keyed else "unsigned"
    end = "closed" if found.closed else "not closed: the box runs, its process was killed, or the end was cut off"
    return f"{found.entries} entries intact, {signed}, {end}; head {found.head}"


def _export(args: argparse.Namespace) -> int:
    from harena.journal.trajectory import lines

    for line in lines(args.file, everything=args.all):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
    return 0


def _replay(args: argparse.Namespace) -> int:
    from harena.sandbox.border import replay
    from harena.sandbox.box import Sandbox

    found = _verified(args.file, None, None)
    if found.problem:
        raise JournalBroken(_finding(found))
    spec, limits = replay.contents_of(args.file)
    with Sandbox(spec, limits=limits) as box:
        ran = replay.replay(args.file, box, until=args.until)
    if args.json:
        differences = [
            {"seq": one.seq, "verb": one.verb, "field": one.field, **{n: _shown(getattr(one, n)) for n in SIDES}}
            for one in ran.differences
        ]
        print_json({"actions": ran.actions, "differences": differences, "unrecorded": list(ran.unrecorded)})
    else:
        for one in ran.differences:
            recorded, replayed = (safe(_shown(value))[:SHOWN] for value in (one.recorded, one.replayed))
            print(f"action {one.seq} ({one.verb}): {one.field} was {recorded!r}, now {replayed!r}")
        print(
            f"{ran.actions} actions, {len(ran.differences)} differences, {len(ran.unrecorded)} had no result to compare"
        )
    return 0 if ran.same else BROKEN


SIDES = ("recorded", "replayed")


def _shown(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
