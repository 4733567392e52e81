"""A child that the host forks cannot use its parent's boxes, nor hurt them when it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import asyncio, gc, json, os, sys, threading, time
from harena import AsyncSandbox, Limits, Sandbox, SandboxPool, WrongProcess

said = {}

def in_child(work, leave=os._exit):
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        with os.fdopen(write, "w") as file:
            json.dump(work(), file)
        leave(0)
    os.close(write)
    with os.fdopen(read) as file:
        answer = file.read()
    status = os.waitpid(pid, 0)[1]
    return json.loads(answer) if status == 0 and answer else f"status {status}"

def name_of(call, *args):
    try:
        return f"no error: {call(*args)!r}"
    except BaseException as error:
        return type(error).__name__

pool = SandboxPool(warm=1, max_live=2)
box, other = Sandbox(), Sandbox()
box.run("kept = 41")
box.write("a", b"1")
files = box._files
process = box.start(["cat"])
talk = box.converse("import socket\\nsock = socket.socket(fileno=5)\\nsock.send(sock.recv(100))\\nsock.recv(1)\\n").met()
closed = Sandbox()
closed.run("1")
closed.close()
twin = AsyncSandbox.of(box)

def use():
    calls = {
        "run": lambda: box.run("kept = 0; print('child')"), "exec": lambda: box.exec(["true"]),
        "call": lambda: box.call("def f(): return 1", "f"), "read": lambda: box.read("a"),
        "write": lambda: box.write("a", b"2"), "fork": box.fork, "ping": box.ping, "start": lambda: box.start(["true"]),
        "snapshot": box.snapshot, "talk": lambda: box.converse("1"), "files": lambda: files.list(".", recursive=False, max_entries=9),
        "warm_up": box.warm_up, "map": lambda: pool.map(["1"]), "lease": pool.lease,
        "deterministic": lambda: pool.check_deterministic("1"),
        "process write": lambda: process.write(b"child"), "process read": lambda: process.stdout.read(timeout_s=1),
        "process wait": process.wait, "process kill": process.kill, "process signal": lambda: process.send_signal(15),
        "process resize": lambda: process.resize(1, 1),
        "talk end": talk.end, "talk freeze": talk.freeze, "talk thaw": talk.thaw,
        "talk pin": lambda: talk.pin({0}), "talk met": talk.met,
        "async": lambda: asyncio.run(twin.run("kept = 0")), "async map": lambda: asyncio.run(twin.exec(["true"])),
    }
    return {name: name_of(call) for name, call in calls.items()}

said["errors"] = in_child(use)

def end_all():
    for one in (process, box, other, closed, pool):
        one.close()
    talk.drop()
    asyncio.run(twin.close())
    with Sandbox() as own:
        return own.exec(["echo", "own"]).stdout.decode()

said["child"] = in_child(end_all)
said["exits"] = in_child(lambda: 1, leave=sys.exit)

# While a thread of the parent waits for a run.
running = threading.Thread(target=lambda: said.update(run=box.run("import time\\ntime.sleep(1.5)\\nprint(kept + 1)").as_json()))
running.start()
time.sleep(0.4)
in_child(end_all)
in_child(lambda: 1, leave=sys.exit)
running.join()
said["kept"] = box.run("print(kept)").stdout.decode()
said["file"] = box.read("a").decode()
process.write(b"parent")
said["process"] = process.stdout.read(timeout_s=20).decode()

# A child that lives on does not keep a parent's stream open.
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
said["ended"] = process.wait(20).exit_code
os.kill(child, 9)
os.waitpid(child, 0)
talk.send(b"hello")
said["talk"] = talk.receive(20).decode()
talk.end()
said["map"] = [result.stdout.decode() for result in pool.map(["print(1)"] * 2)]
said["alive"] = box.alive and other.alive
for one in (box, other, pool):
    one.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_a_child_is_refused_by_name(said: dict[str, Any]) -> None:
    assert {name: error for name, error in said["errors"].items() if error != "WrongProcess"} == {}
    assert len(said["errors"]) > 25


def test_a_child_may_close_what_it_has_and_make_its_own(said: dict[str, Any]) -> None:
    assert said["child"] == "own\n"
    assert said["exits"] == 1


def test_the_parents_boxes_work_on(said: dict[str, Any]) -> None:
    assert (said["kept"], said["file"], said["process"], said["talk"]) == ("41\n", "1", "parent", "hello")
    assert said["map"] == ["1\n", "1\n"]
    assert said["alive"]


def test_a_run_goes_on_when_a_child_ends(said: dict[str, Any]) -> None:
    assert (said["run"]["verdict"], said["run"]["stdout"]) == ("ok", "42\n")


def test_a_child_holds_no_stream_of_its_parents_open(said: dict[str, Any]) -> None:
    assert said["ended"] == 0
