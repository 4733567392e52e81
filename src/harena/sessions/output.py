"""Output of a step in pieces, while it runs."""

from __future__ import annotations

import codecs
import dataclasses
import select

from harena.sandbox.box import Sandbox
from harena.sandbox.process import Stream
from harena.sandbox.spec import Limits, Result
from harena.sessions.operations import Feed
from harena.sessions.steps import Step


class OutputPieces:
    """Puts output into the feed of an operation. The pieces of a stream together are the text of the step's record."""

    def __init__(self, feed: Feed, step: int) -> None:
        self._feed = feed
        self._step = step
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {"stdout": decoder("replace"), "stderr": decoder("replace")}

    def add(self, stream: str, data: bytes) -> None:
        """No data: the end of the stream."""
        text = self._decoders[stream].decode(data, final=not data)
        if text:
            self._feed.append({"event": "output", "step": self._step, "stream": stream, "data": text}, len(text))


def exec_in_pieces(box: Sandbox, step: Step, limits: Limits, pieces: OutputPieces) -> Result:
    """Run a command as Sandbox.exec does, and pass its output on as it comes."""
    with box.start(step.command, env=step.env, cwd=step.cwd, limits=limits) as process:
        process.close_stdin()
        streams: dict[str, Stream] = {"stdout": process.stdout}
        if process.stderr is not None:
            streams["stderr"] = process.stderr
        parts: dict[str, list[bytes]] = {name: [] for name in streams}
        while live := {stream.fileno(): name for name, stream in streams.items() if stream.fileno() >= 0}:
            poll = select.poll()
            for fd in live:
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll():
                name = live[fd]
                data = streams[name].read()
                parts[name].append(data)
                pieces.add(name, data)
        result = process.wait()
    out, err = (b"".join(parts.get(name, ())) for name in ("stdout", "stderr"))
    return dataclasses.replace(result, stdout=out + result.stdout, stderr=err + result.stderr)
