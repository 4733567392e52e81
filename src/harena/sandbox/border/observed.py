"""A box whose border is observed. It has the verbs of a backend's box, and passes them on.

Guarantees: the observer knows of an action before the box does, and can refuse it by an exception; every action that
began ends once, with results or with an error. Bytes over `connect` and over the network of a box are not observed.
"""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from harena.errors import BoxClosed, BoxLost
from harena.sandbox.backend import Box, Conversation, Forked, Programs, Stop, Task, TaskDone, Turn
from harena.sandbox.files import Files
from harena.sandbox.network import Network
from harena.sandbox.process import Process
from harena.sandbox.shell import BoxOfShell, Shell
from harena.sandbox.spec import Limits, Result

T = TypeVar("T")
Fields = Mapping[str, Any]


class Observer(Protocol):
    def begin(self, verb: str, plain: Fields, data: Fields, values: Fields, limits: Limits | None) -> int:
        """An action is about to reach the box. `data` are bytes or lists of them, `values` JSON. Returns its number.
        Raises to refuse the action."""
        ...

    def piece(self, of: int, stream: str, data: bytes) -> None:
        """Bytes to or from a process that runs."""
        ...

    def end(self, of: int, results: Sequence[Result], answer: Any = None, data: bytes | None = None) -> None: ...

    def fail(self, of: int, error: BaseException) -> None:
        """The action has no result."""
        ...

    def fork(self, box_id: str) -> Observer:
        """Return the observer of a fork of the box."""
        ...

    def close(self) -> None: ...


class Once:
    """An action that began, and ends once."""

    def __init__(self, observer: Observer, of: int) -> None:
        self.observer, self.of = observer, of
        self._ended = False

    def end(self, results: Sequence[Result] = (), answer: Any = None, data: bytes | None = None) -> None:
        if not self._ended:
            self._ended = True
            self.observer.end(self.of, results, answer, data)

    def fail(self, error: BaseException) -> None:
        if not self._ended:
            self._ended = True
            self.observer.fail(self.of, error)

    def piece(self, stream: str, data: bytes) -> None:
        if data:
            self.observer.piece(self.of, stream, data)

    def during(self, work: Callable[[], T]) -> T:
        """Do what may fail. The action ends with the error if it does."""
        try:
            return work()
        except BaseException as error:
            self.fail(error)
            raise


class ObservedBox:
    def __init__(self, inner: Box, observer: Observer) -> None:
        self.inner, self.observer = inner, observer
        self.id = inner.id

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # what has no part in the border: ping, warm_up, isolation …

    @property
    def alive(self) -> bool:
        return self.inner.alive

    def ping(self) -> None:
        self.inner.ping()

    def warm_up(self) -> None:
        self.inner.warm_up()

    def network_report(self) -> Any:
        return self.inner.network_report()

    def begin(
        self,
        verb: str,
        *,
        plain: Fields | None = None,
        data: Fields | None = None,
        limits: Limits | None = None,
        **values: Any,
    ) -> Once:
        return Once(self.observer, self.observer.begin(verb, plain or {}, data or {}, values, limits))

    # ---- executions ----

    def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes,
        env: Mapping[str, str],
        cwd: str,
        limits: Limits,
        stop: Stop | None,
    ) -> Result:
        data = {"cwd": _bytes(cwd), "stdin": stdin}
        act = self.begin("exec", data=data, limits=limits, argv=list(argv), env=dict(env))
        result = act.during(lambda: self.inner.exec(argv, stdin=stdin, env=env, cwd=cwd, limits=limits, stop=stop))
        act.end([result])
        return result

    def run(self, source: str, *, limits: Limits, stop: Stop | None) -> Result:
        act = self.begin("run", data={"source": _bytes(source)}, limits=limits)
        result = act.during(lambda: self.inner.run(source, limits=limits, stop=stop))
        act.end([result])
        return result

    def call(
        self,
        source: str,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        limits: Limits,
        stop: Stop | None,
    ) -> Result:
        given = {"args": args, "kwargs": kwargs}
        act = self.begin("call", plain={"name": name}, data={"source": _bytes(source)}, limits=limits, given=given)
        result = act.during(lambda: self.inner.call(source, name, args, kwargs, limits=limits, stop=stop))
        act.end([result])
        return result

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        limits: Limits,
        pty: bool,
        rows: int,
        cols: int,
    ) -> Process:
        data = {"cwd": _bytes(cwd)}
        act = self.begin("start", plain={"pty": pty}, data=data, limits=limits, argv=list(argv), env=dict(env))
        process = act.during(
            lambda: self.inner.start(argv, env=env, cwd=cwd, limits=limits, pty=pty, rows=rows, cols=cols)
        )

        def ended(result: Result | None) -> None:
            if result is None:
                act.fail(BoxClosed("the process was closed before its end"))
            else:
                act.end([dataclasses.replace(result, stdout=b"", stderr=b"")])  # its output was observed in pieces

        process.observe(act.piece, ended)
        return process

    def programs(self) -> Programs:
        return _ObservedPrograms(self, self.inner.programs())

    def converse(self, source: str, *, limits: Limits) -> Conversation:
        act = self.begin("converse", data={"source": _bytes(source)}, limits=limits)
        return _ObservedConversation(act.during(lambda: self.inner.converse(source, limits=limits)), act)

    def converse_with(self, argv: Sequence[str], *, limits: Limits, cpus: set[int]) -> Conversation:
        act = self.begin("converse_with", limits=limits, argv=list(argv))
        made = act.during(lambda: self.inner.converse_with(argv, limits=limits, cpus=cpus))
        return _ObservedConversation(made, act)

    def observed_shell(
        self,
        box: Any,
        head: object,
        *,
        argv: Sequence[str] | None,
        of_image: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        limits: Limits,
    ) -> Shell:
        """A shell whose commands are observed, and not the files and the terminal that it is made of."""
        words = [] if argv is None else list(argv)
        act = self.begin("shell", data={"cwd": _bytes(cwd or "")}, limits=limits, argv=words, env=dict(env))
        within = _Unobserved(box, self.inner)
        return act.during(
            lambda: ObservedShell(within, argv=argv, of_image=of_image, env=env, cwd=cwd, limits=limits).use(self, act)
        )

    # ---- the rest ----

    def ask_files(self, message: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        shown = {"path": _bytes(str(message.get("path", ""))), "data": data}
        act = self.begin("files", plain={"op": message["op"]}, data=shown, message=dict(message))
        answer, found = act.during(lambda: self.inner.ask_files(message, data))
        act.end(answer=answer, data=found)
        return answer, found

    def fork(self, count: int) -> Sequence[Forked]:
        act = self.begin("fork", plain={"count": count})
        forks = act.during(lambda: self.inner.fork(count))
        try:
            made = [
                Forked(ObservedBox(one.box, self.observer.fork(one.box.id)), one.left_behind)  # pyright: ignore
                for one in forks
            ]
        except BaseException as error:
            for one in forks:
                one.box.close()
            act.fail(error)
            raise
        act.end(answer={"boxes": [one.box.id for one in forks]}, data=b"")
        return made

    def set_network(self, network: Network | None) -> None:
        rules = None if network is None else dataclasses.asdict(network)
        act = self.begin("network", rules=rules)
        act.during(lambda: self.inner.set_network(network))
        act.end()

    def connect(self, port: int, timeout_s: float) -> socket.socket:
        act = self.begin("connect", plain={"port": port})
        made = act.during(lambda: self.inner.connect(port, timeout_s))
        act.end()
        return made

    def close(self) -> None:
        try:
            self.inner.close()
        finally:
            self.observer.close()


class _ObservedPrograms:
    def __init__(self, box: ObservedBox, inner: Programs) -> None:
        self._box, self._inner = box, inner
        self._acts: dict[int, Once] = {}

    def fileno(self) -> int:
        return self._inner.fileno()

    def give(self, key: int, task: Task) -> None:
        data = {"sources": [_bytes(source) for source in task.sources], "stdin": task.stdin}
        act = self._box.begin("program", plain={"grouped": task.grouped}, data=data, limits=task.limits)
        self._acts[key] = act
        act.during(lambda: self._inner.give(key, task))

    def flush(self) -> bool:
        return self._during(self._inner.flush)

    def collect(self) -> Sequence[TaskDone]:
        ended = self._during(self._inner.collect)
        for one in ended:
            act = self._acts.pop(one.key, None)
            if act is not None and one.failure:
                act.fail(BoxLost(one.failure))
            elif act is not None:
                act.end(one.results)
        return ended

    def _during(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except BaseException as error:  # it ends all tasks, together with the box
            for act in self._acts.values():
                act.fail(error)
            self._acts.clear()
            raise


class _ObservedConversation:
    def __init__(self, inner: Conversation, act: Once) -> None:
        self._inner, self._act = inner, act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def met(self) -> Conversation:
        self._inner = self._act.during(self._inner.met)
        return self

    def send(self, packet: bytes) -> None:
        self._act.piece("in", packet)
        self._inner.send(packet)

    def turn(self, wait_s: float, cpu_ns: int | None) -> Turn:
        turn = self._inner.turn(wait_s, cpu_ns)
        self._act.piece("out", turn.packet or b"")
        return turn

    def become_stream(self, packet: bytes) -> None:
        self._act.piece("in", packet)
        self._inner.become_stream(packet)

    def receive_soon(self) -> bytes | None:
        packet = self._inner.receive_soon()
        self._act.piece("out", packet or b"")
        return packet

    def receive(self, wait_s: float) -> bytes | None:
        packet = self._inner.receive(wait_s)
        self._act.piece("out", packet or b"")
        return packet

    def read_log(self) -> bytes:
        log = self._inner.read_log()
        self._act.piece("log", log)
        return log

    def cpu_ns(self) -> int:
        return self._inner.cpu_ns()

    def others_cpu_ns(self) -> int:
        return self._inner.others_cpu_ns()

    def freeze(self) -> None:
        self._inner.freeze()

    def thaw(self) -> None:
        self._inner.thaw()

    def pin(self, cpus: set[int]) -> None:
        self._inner.pin(cpus)

    def end(self, patience_s: float = 0.0) -> Result:
        result = self._act.during(lambda: self._inner.end(patience_s))
        self._act.end([result])
        return result

    def drop(self) -> None:
        self._inner.drop()
        self._act.end()


class _Unobserved:
    """What a shell needs of its box, past the observer."""

    def __init__(self, box: Any, inner: Box) -> None:
        self.id, self.isolation = inner.id, box.isolation
        self._box, self._inner = box, inner
        self.files = Files(inner.ask_files)

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, limits: Limits, pty: bool
    ) -> Process:
        return self._touch(
            lambda: self._inner.start(argv, env=env, cwd=cwd or "", limits=limits, pty=pty, rows=24, cols=80)
        )

    def write(self, path: str, data: bytes | str) -> None:
        self._touch(lambda: self.files.write(path, data.encode() if isinstance(data, str) else data, 0o644))

    def remove(self, path: str) -> None:
        self._touch(lambda: self.files.remove(path))

    def _touch(self, work: Callable[[], T]) -> T:
        self._box.begin_call()
        try:
            return work()
        finally:
            self._box.end_call()


class ObservedShell(Shell):
    _observed: tuple[ObservedBox, Once] | None = None

    def __init__(self, box: _Unobserved, **options: Any) -> None:
        within: BoxOfShell = box
        super().__init__(within, box.files.head, **options)

    def use(self, box: ObservedBox, act: Once) -> ObservedShell:
        self._observed = box, act
        return self

    def exec(self, command: str, *, timeout_s: float | None = None, output_bytes: int | None = None) -> Result:
        assert self._observed is not None
        box, shell = self._observed
        plain = {"shell": shell.of, "timeout_s": timeout_s, "output_bytes": output_bytes}
        act = box.begin("command", plain=plain, data={"command": _bytes(command)})
        run = super().exec
        result = act.during(lambda: run(command, timeout_s=timeout_s, output_bytes=output_bytes))
        act.end([result])
        return result

    def close(self) -> None:
        super().close()
        if self._observed is not None:
            self._observed[1].end()


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
