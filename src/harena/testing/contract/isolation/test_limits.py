"""Every limit holds, for the whole tree of processes, and has its verdict. Boxes outlive what hit a limit."""

from __future__ import annotations

import dataclasses
import errno
import time
from collections.abc import Callable

import pytest

from harena import Limits, Result, Sandbox, Verdict
from harena.testing.contract.shared import Shared

BOUNDS = Limits(wall_s=10, memory_mb=128, processes=16, output_bytes=100_000, open_files=64)
Door = Callable[..., Result]


@pytest.fixture(params=["exec", "run", "call", "program"])
def door(request: pytest.FixtureRequest, shared: Shared, make_box: Callable[..., Sandbox]) -> Door:
    """The ways in which source is run; a limit holds on each. What hit it must have hurt nobody else."""

    def run(source: str, **changes: float) -> Result:
        limits = dataclasses.replace(BOUNDS, **changes)
        if request.param == "program":
            result = shared.pool.map([source], limits=limits)[0]
            assert shared.pool.map(["print('works')"])[0].stdout == b"works\n"
            return result
        # Memory, processes and files of the interpreter are limited when it starts.
        box = make_box(limits=limits, workspace_mb=8) if request.param == "run" else shared.box
        if request.param == "run":
            result = box.run(source)
        elif request.param == "exec":
            result = box.exec(["python3", "-c", source], limits=limits)
        else:
            body = "".join(f"    {line}\n" for line in source.splitlines())
            result = box.call(f"def f():\n{body}", "f", limits=limits)
        assert box.exec(["echo", "works"], limits=Limits()).stdout == b"works\n"
        return result

    return run


def test_wall_clock(door: Door) -> None:
    started = time.monotonic()
    result = door("import time\ntime.sleep(1000)", wall_s=0.2)
    assert (result.verdict, result.exit_code, result.signal) == (Verdict.TIME, None, None)
    assert "wall_s=0.2" in result.detail
    assert 0.2 <= result.usage.wall_s < time.monotonic() - started < 15


def test_cpu_time_of_one_process(door: Door) -> None:
    result = door("while True: pass", cpu_s=0.15)
    assert result.verdict is Verdict.TIME
    assert "cpu_s=0.15" in result.detail
    assert 0.12 < result.usage.cpu_s < 5


def test_cpu_time_of_the_whole_tree(door: Door) -> None:
    result = door("import os\nfor _ in range(3): os.fork()\nwhile True: pass", cpu_s=0.2)
    assert result.verdict is Verdict.TIME
    assert "cpu_s=0.2" in result.detail


def test_cpu_time_of_orphans_that_have_ended(door: Door) -> None:
    """Each runs for less than the limit and nobody of the program's own waits for it."""
    source = (
        "import os, time\n"
        "while True:\n"
        "    read, write = os.pipe()\n"
        "    if not os.fork():\n"
        "        if os.fork():\n            os._exit(0)\n"
        "        end = time.process_time() + 0.05\n        while time.process_time() < end: pass\n        os._exit(0)\n"
        "    os.close(write)\n    os.wait()\n    os.read(read, 1)\n    os.close(read)\n"
    )
    result = door(source, cpu_s=0.3, wall_s=20)
    assert result.verdict is Verdict.TIME
    assert "cpu_s=0.3" in result.detail
    assert result.usage.wall_s < 15


def test_waiting_is_no_cpu_time(door: Door) -> None:
    assert door("import time\ntime.sleep(0.35)", cpu_s=0.3).verdict is Verdict.OK


def test_memory_asked_for_at_once(door: Door) -> None:
    result = door("x = b'x' * 10**9")
    assert result.verdict is Verdict.MEMORY
    assert "memory_mb=128" in result.detail


def test_memory_taken_step_by_step(door: Door) -> None:
    assert door("x = []\nwhile True: x.append(b'x' * 10**6)").verdict is Verdict.MEMORY


def test_memory_of_many_processes_adds_up(door: Door) -> None:
    source = (
        "import os, time\n"
        "for _ in range(5):\n    if not os.fork():\n        x = bytearray(50 * 2**20)\n        time.sleep(60)\n"
        "os.wait()\nraise SystemExit(9)\n"
    )
    assert door(source).verdict is Verdict.MEMORY


def test_memory_below_the_limit_is_free_to_use(door: Door) -> None:
    assert door("x = bytearray(60 * 2**20)\nprint(len(x))").stdout == b"62914560\n"


def test_fork_bomb(door: Door) -> None:
    result = door("import os\nwhile True: os.fork()", wall_s=2)
    assert result.verdict is Verdict.PROCESSES
    assert "processes=16" in result.detail


def test_children_beyond_the_limit(door: Door) -> None:
    source = "import subprocess\nheld = [subprocess.Popen(['sleep', '60']) for _ in range(40)]"
    assert door(source).verdict is Verdict.PROCESSES


def test_threads_beyond_the_limit(door: Door) -> None:
    source = (
        "import threading, time\n"
        "for _ in range(40): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    assert door(source).verdict is Verdict.PROCESSES


def test_children_below_the_limit(door: Door) -> None:
    source = (
        "import subprocess\n"
        "held = [subprocess.Popen(['cat'], stdin=subprocess.PIPE) for _ in range(8)]\n"
        "for one in held: one.communicate()\n"
        "print(sum(one.returncode for one in held))\n"
    )
    assert door(source).stdout == b"0\n"


def test_limit_that_was_met_and_survived_is_not_held_against_the_next(box: Sandbox) -> None:
    copes = "import subprocess\ntry:\n    [subprocess.Popen(['sleep', '0.1']) for _ in range(40)]\nexcept OSError: pass"
    for _ in range(3):
        assert box.exec(["python3", "-c", copes], limits=BOUNDS).ok
        result = box.exec(["sh", "-c", "exit 3"], limits=BOUNDS)
        assert (result.verdict, result.exit_code) == (Verdict.EXIT, 3), result


def test_output_beyond_the_limit_is_cut_there_and_told(door: Door) -> None:
    result = door("import sys\nfor _ in range(10**6): sys.stdout.write('x' * 999)")
    assert (result.verdict, result.exit_code) == (Verdict.OUTPUT, None)
    assert result.stdout == b"x" * 100_000
    assert "output_bytes=100000" in result.detail


def test_stdout_and_stderr_share_the_limit(door: Door) -> None:
    source = "import os\nfor _ in range(9): os.write(1, b'x' * 7000); os.write(2, b'x' * 7000)"
    result = door(source)
    assert result.verdict is Verdict.OUTPUT
    assert len(result.stdout) + len(result.stderr) == 100_000


@pytest.mark.parametrize(("extra", "verdict"), [(0, Verdict.OK), (1, Verdict.OUTPUT)])
def test_output_limit_is_exact(door: Door, extra: int, verdict: Verdict) -> None:
    result = door(f"import sys\nsys.stdout.write('x' * {1000 + extra})", output_bytes=1000)
    assert (result.verdict, len(result.stdout)) == (verdict, 1000)


def test_no_output_at_all(door: Door) -> None:
    assert door("pass", output_bytes=0).verdict is Verdict.OK
    assert door("print()", output_bytes=0).verdict is Verdict.OUTPUT


DISK = """
import errno, os
def fill(folder):
    try:
        with open(folder + '/big', 'wb') as file:
            for _ in range(64):
                file.write(b'x' * 2**20)
                file.flush()
    except OSError as error:
        return error.errno
    finally:
        os.unlink(folder + '/big')
print(fill('/workspace'), fill('/tmp'), fill('/dev/shm'))
"""


def test_disk(door: Door) -> None:
    assert door(DISK, memory_mb=512).stdout.split() == [str(errno.ENOSPC).encode()] * 3


INODES = """
import os
try:
    for number in range(10**6):
        open(f'/workspace/{number}', 'w').close()
except OSError as error:
    print(error.errno)
for name in os.listdir('/workspace'):
    os.unlink('/workspace/' + name)
"""


def test_number_of_files_on_disk(shared: Shared) -> None:
    for result in (shared.box.exec(["python3", "-c", INODES]), shared.pool.map([INODES])[0]):
        assert result.stdout.split() == [str(errno.ENOSPC).encode()]


FILES = """
import os
held = []
try:
    while True: held.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error:
    number = error.errno
for fd in held: os.close(fd)
print(number, len(held))
"""


def test_open_files(door: Door) -> None:
    number, held = map(int, door(FILES, open_files=40).stdout.split())
    assert number == errno.EMFILE
    assert 25 <= held < 40


def test_limits_cannot_be_raised_from_inside(door: Door) -> None:
    source = (
        "import resource\n"
        "for name in ('RLIMIT_NPROC', 'RLIMIT_NOFILE', 'RLIMIT_CORE'):\n"
        "    which = getattr(resource, name)\n"
        "    soft, hard = resource.getrlimit(which)\n"
        "    try:\n        resource.setrlimit(which, (hard + 1, hard + 1))\n        print('raised', name)\n"
        "    except (ValueError, OSError):\n        print('held')\n"
    )
    assert door(source).stdout == b"held\n" * 3


# ---- usage ----


def test_usage_counts_cpu_of_children(door: Door) -> None:
    source = (
        "import os, time\n"
        "if not os.fork():\n"
        "    end = time.process_time() + 0.2\n    while time.process_time() < end: pass\n    os._exit(0)\n"
        "os.wait()\n"
    )
    result = door(source)
    assert result.verdict is Verdict.OK
    assert 0.17 < result.usage.cpu_s < 3
    assert result.usage.wall_s >= 0.17


def test_usage_of_one_that_waits_is_small(door: Door) -> None:
    result = door("import time\ntime.sleep(0.2)")
    assert result.usage.cpu_s < 0.2
    assert 0.2 <= result.usage.wall_s < 15


def test_usage_tells_peak_memory(door: Door) -> None:
    result = door("x = bytearray(70 * 2**20)\nx[::4096] = b'x' * len(x[::4096])\ndel x")
    assert 65 < result.usage.peak_mb < 140


def test_usage_counts_bytes(door: Door) -> None:
    assert door("import os\nos.write(1, b'x' * 30)\nos.write(2, b'x' * 12)").usage.bytes == 42
