"""Code of the arena commands. Guarantees: results go to stdout, progress and errors to stderr; names and texts of other
users are made safe before they are printed, and JSON is ASCII.
"""

from __future__ import annotations

import argparse
import codecs
import itertools
import json
import os
import sys
import time
from collections.abc import Iterable
from urllib.parse import quote

from harena import schema, terminal
from harena.client import config
from harena.client.blocking import ArenaClient
from harena.client.cli import INTERRUPTED, NO, OK
from harena.command import USAGE, fail, print_json
from harena.errors import SpecError
from harena.terminal import safe, safe_lines

REFRESH_S = 0.5
"""Minimum time between two drawings of a board."""
LATEST, TOPICS = 50, 50
SHORT_ID, FULL_ID = 6, 32
"""Digits of an id that may be typed, and that it has."""


def submit(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        sent = client.submit(args.files, args.env, algorithm=args.algorithm, owner=args.owner, main_file=args.main_file)
        note(f"submitted {sent.id}: {agent_name(sent)} for {sent.env_id}")
        if not args.wait:
            return _print_submission(client, sent, args)
        return _follow(client, sent.id, args)


def status(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        args.id = _full_id(client, args.id)
        return _follow(client, args.id, args) if args.watch else _print_submission(client, client.status(args.id), args)


def logs(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        args.id = _full_id(client, args.id)
        text = client.logs(args.id)
    if args.json:
        print_json({"id": args.id, "log": text})
    else:
        sys.stdout.write(safe_lines(text))
    return OK


def leaderboard(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        if args.env is None:
            return _print_environments(client, args)
        if args.watch:
            return _watch_board(client, args)
        board = _board(client, args)
        if args.json:
            print_json(schema.as_json(board))
        else:
            say(board_text(board))
    return OK


def watch(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        if args.match is not None:
            return _watch_match(client, args)
        if args.env is not None:
            args.board = args.season = args.user = args.algorithm = None
            args.offset = 0
            return _watch_board(client, args)
        return _watch_results(client, args)


def challenge(args: argparse.Namespace) -> int:
    with client_of(args) as client:
        matches = client.challenge(args.id, args.opponent, args.games)
        if args.json:
            print_json([schema.as_json(match) for match in matches])
        else:
            for match in matches:
                say(f"{safe(match.id)}  {_page(client, 'match', match.id)}")
            if matches:
                note(f"`harena watch {matches[0].id}` follows the first one")
    return OK


def export(args: argparse.Namespace) -> int:
    to_terminal = args.output == "-" and sys.stdout.isatty()
    if to_terminal and args.format == "parquet":
        return fail(USAGE, "parquet cannot be printed on a terminal; use -o FILE")
    with client_of(args) as client:
        pieces = client.export_stream(args.what, args.env, args.format, board=args.board, season=args.season)
        first = next(pieces, b"")  # before a file is created, since the arena may refuse
        whole = itertools.chain([first], pieces)
        if args.output != "-":
            return _save(whole, args.output)
        if to_terminal:
            for text in codecs.iterdecode(whole, "utf-8", "replace"):
                sys.stdout.write(safe_lines(text))
        else:
            sys.stdout.buffer.writelines(whole)
        sys.stdout.flush()
    return OK


def gradio(args: argparse.Namespace) -> int:
    from harena.client import gradio_app

    return gradio_app.serve(url=args.url, key=args.key, host=args.host, port=args.port)


# ---- submissions ----


def _follow(client: ArenaClient, submission_id: str, args: argparse.Namespace) -> int:
    shown = ""

    def show(found: schema.Submission) -> None:
        nonlocal shown
        if not found.final and (text := progress_text(found)) != shown:
            note(shown := text)

    try:
        found = client.wait(submission_id, args.timeout, on_change=show)
    except KeyboardInterrupt:
        note(f"the submission continues; `harena status {submission_id} --watch` follows it")
        return INTERRUPTED
    return _print_submission(client, found, args)


def _full_id(client: ArenaClient, given: str) -> str:
    """The id that begins with what was typed, among the latest submissions of one's own. The arena itself knows whole
    ids only: a short one could be guessed."""
    if not SHORT_ID <= len(given) < FULL_ID or not set(given) <= set("0123456789abcdef"):
        return given
    found = [one.id for one in client.submissions(limit=200) if one.mine and one.id.startswith(given)]
    if len(found) > 1:
        raise SpecError(f"{given} is the beginning of {len(found)} of your submissions: type more of it")
    return found[0] if found else given


def _print_submission(client: ArenaClient, found: schema.Submission, args: argparse.Namespace) -> int:
    if args.json:
        print_json(schema.as_json(found))
    else:
        say(submission_text(found))
        say(_page(client, "submission", found.id))
    return OK if found.state == "ranked" or not found.final else NO


def progress_text(found: schema.Submission) -> str:
    """One line for a state that is not final."""
    if found.state != "queued":
        return safe(found.state)
    parts = ["queued"]
    if found.position is not None:
        parts.append(f"number {found.position}")
    if found.eta_s is not None:
        parts.append(f"about {found.eta_s:.0f} s")
    return ", ".join(parts)


def submission_text(found: schema.Submission) -> str:
    lines = [f"{agent_name(found)} for {safe(found.env_id)}", f"{progress_text(found)}{_result(found)}"]
    if found.benched:
        lines.append(f"benched: {safe(found.benched)}" if isinstance(found.benched, str) else "benched")
    if found.reason:
        lines += [f"  {line}" for line in safe_lines(found.reason).splitlines()]
    lines += [f"warning: {safe(warning)}" for warning in found.warnings or ()]
    if found.final and found.has_log:
        lines.append(f"`harena logs {safe(found.id)}` shows what it printed")
    return "\n".join(lines)


def _result(found: schema.Submission) -> str:
    placed = found if found.score is not None else found.standing  # agents of a ladder have their rating there
    if placed is None or placed.score is None:
        return ""
    text = f": {score_text(placed.score, placed.low, placed.high)}"
    if found.standing is not None and found.standing.rank:
        text += f", rank {found.standing.rank}"
    return text if found.kind != "self-reported" else f"{text}, self-reported"


def agent_name(one: schema.Submission | schema.BoardEntry | schema.MatchSeat | schema.Participant) -> str:
    return safe(f"{one.owner}/{one.algorithm} v{one.version}")


def score_text(score: float | None, low: float | None, high: float | None) -> str:
    if score is None:
        return "-"
    return f"{score:.2f}" if low is None or high is None else f"{score:.2f} [{low:.2f}, {high:.2f}]"


# ---- boards ----


def _board(client: ArenaClient, args: argparse.Namespace) -> schema.Board:
    return client.leaderboard(
        args.env,
        board=args.board,
        season=args.season,
        user=args.user,
        algorithm=args.algorithm,
        limit=args.limit,
        offset=args.offset,
    )


def board_text(board: schema.Board) -> str:
    rows = [
        (
            str(entry.rank),
            agent_name(entry),
            score_text(entry.score, entry.low, entry.high),
            _count(entry.games),
            _count(entry.wins),
            _count(entry.draws),
            _count(entry.losses),
            _marks(entry),
            entry.submission_id,
        )
        for entry in board.entries
    ]
    head = ("rank", "agent", "score (95 %)", "games", "won", "drawn", "lost", "", "submission")
    title = f"{safe(board.env_id)}, {safe(board.board)}: {board.total} {'entry' if board.total == 1 else 'entries'}"
    return f"{title}\n\n{terminal.table(head, rows, left=('agent', '', 'submission'))}" if rows else title


def _count(number: int | None) -> str:
    return "" if number is None else str(number)


def _marks(entry: schema.BoardEntry) -> str:
    marks = {"provisional": entry.provisional, "benched": entry.benched, "anonymous": entry.anonymous}
    return ", ".join(word for word, holds in marks.items() if holds)


def _watch_board(client: ArenaClient, args: argparse.Namespace) -> int:
    name = client.environment(args.env).env_id  # the full id, in case a short one was given
    with terminal.Screen(None) as screen:
        for _ in client.watch(f"board:{name}"):
            board = _board(client, args)
            if args.json:
                print(json.dumps(schema.as_json(board), allow_nan=False), flush=True)
            else:
                screen.draw(f"{client.url}  {time.strftime('%H:%M:%S')}", board_text(board))
            time.sleep(REFRESH_S)
    return OK


def _print_environments(client: ArenaClient, args: argparse.Namespace) -> int:
    found = client.environments()
    if args.json:
        print_json([schema.as_json(environment) for environment in found])
        return OK
    rows = [(one.env_id, one.kind, str(one.seats), str(one.entries), one.title or one.summary) for one in found]
    head = ("environment", "kind", "seats", "entries", "title")
    say(terminal.table(head, rows, left=("environment", "kind", "title")))
    return OK


# ---- matches ----


def _watch_match(client: ArenaClient, args: argparse.Namespace) -> int:
    match = client.match(args.match)
    if not match.final:
        _draw_frames(client, match, args)
        match = client.match(args.match)
    if args.json:
        print(json.dumps(schema.as_json(match), allow_nan=False))
    else:
        say(match_text(match))
        say(_page(client, "match", match.id))
    return OK


def _draw_frames(client: ArenaClient, match: schema.Match, args: argparse.Namespace) -> None:
    title = f"{match.env_id}: {' against '.join(agent_name(seat) for seat in match.seats)}"
    fps = args.fps or (20.0 if sys.stdout.isatty() else None)
    with terminal.Screen(fps) as screen:
        for frame in client.live(match.id):
            if args.json:
                print(json.dumps({"event": frame.event, **frame.body}), flush=True)
            elif frame.text:
                screen.draw(f"{title}, step {frame.body.get('step', '?')}", frame.text)


def match_text(match: schema.Match) -> str:
    """The players of a match, its result and the reason."""
    names = [agent_name(seat) for seat in match.seats]
    head = f"{safe(match.env_id)} match {match.number}, {safe(match.kind)}: {' against '.join(names)}"
    lines = [head, _ending(match, names)]
    rows = [
        (str(seat.seat), name, "" if seat.score is None else f"{seat.score:g}", seat.status or "", seat.reason or "")
        for seat, name in zip(match.seats, names, strict=True)
    ]
    if match.final and rows:
        lines += [
            "",
            terminal.table(("seat", "agent", "score", "status", "reason"), rows, left=("agent", "status", "reason")),
        ]
    return "\n".join(lines)


def _ending(match: schema.Match, names: list[str]) -> str:
    if match.state != "finished":
        text = match.state
    elif match.winner is None:
        text = "a draw" if len(names) > 1 else "finished"
    else:
        won = next((name for seat, name in zip(match.seats, names, strict=True) if seat.seat == match.winner), "?")
        text = f"{won} won"
    steps = "" if match.steps is None else f", {match.steps} steps"
    return safe(f"{text}{steps}{f': {match.reason}' if match.reason else ''}")


def _watch_results(client: ArenaClient, args: argparse.Namespace) -> int:
    """Print a line for each match that ends."""
    names = [environment.env_id for environment in client.environments() if environment.seats > 1][:TOPICS]
    if not names:
        return fail(NO, "this arena has no environment with matches; `harena watch --env ENV` follows a board")
    seen: dict[str, set[str]] = {}
    for notice in client.watch([f"matches:{name}" for name in names]):
        topics = [notice.topic] if notice.topic else [f"matches:{name}" for name in names]  # a reset has no topic
        for topic in topics:
            latest = client.matches(env_id=topic.removeprefix("matches:"), limit=LATEST)
            ended = [match for match in reversed(latest) if match.final]
            for match in ended:
                if topic in seen and match.id not in seen[topic]:
                    _print_result(client, match, as_json=args.json)
            seen[topic] = {match.id for match in ended}
    return OK


def _print_result(client: ArenaClient, match: schema.Match, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(schema.as_json(match), allow_nan=False), flush=True)
        return
    names = [agent_name(seat) for seat in match.seats]
    text = f"{safe(match.env_id)}  {' against '.join(names)}: {_ending(match, names)}"
    say(f"{text}  {_page(client, 'match', match.id)}")


# ---- shared helpers ----


def client_of(args: argparse.Namespace) -> ArenaClient:
    client = ArenaClient(args.url, key=args.key)
    if config.api_key(args.key) and client.url.startswith("http:") and not config.is_loopback(client.url):
        note("your key is sent over the network unencrypted; use https if possible")
    return client


def _page(client: ArenaClient, kind: str, name: str) -> str:
    return f"{client.url}/{kind}/{quote(name)}"


def say(text: str) -> None:
    """Print text, made safe for the terminal."""
    print(safe_lines(text), flush=True)


def note(text: str) -> None:
    print(safe(text), file=sys.stderr, flush=True)


def _save(pieces: Iterable[bytes], path: str) -> int:
    """Write a file completely or not at all."""
    part = f"{path}.part"
    try:
        with open(part, "wb") as file:
            file.writelines(pieces)
        os.replace(part, path)
    except OSError as error:
        return fail(USAGE, f"cannot write {path}: {error.strerror}")
    return OK
