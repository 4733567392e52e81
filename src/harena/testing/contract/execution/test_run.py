"""`run`: source in the box's persistent interpreter."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from harena import Limits, Sandbox, Verdict

SMALL = Limits(wall_s=20, memory_mb=128)


def test_state_is_kept_from_run_to_run(box: Sandbox) -> None:
    assert box.run("import math\ndef double(n):\n    return 2 * n\nx = 20").ok
    result = box.run("x += 1\nprint(double(x), math.floor(1.5))")
    assert (result.verdict, result.exit_code, result.stdout, result.stderr) == (Verdict.OK, 0, b"42 1\n", b"")


def test_source_is_the_main_module(box: Sandbox) -> None:
    assert box.run("print(__name__)\nx = 1").stdout == b"__main__\n"
    assert box.run("import __main__; print(__main__.x)").stdout == b"1\n"


def test_output_is_that_of_the_run_alone(box: Sandbox) -> None:
    result = box.run("import sys; print('one'); print('err', file=sys.stderr)")
    assert (result.stdout, result.stderr, result.usage.bytes) == (b"one\n", b"err\n", 8)
    assert box.run("print('two', end='')").stdout == b"two"


def test_output_of_child_processes_is_collected(box: Sandbox) -> None:
    assert box.run("import subprocess; subprocess.run(['echo', 'child'])").stdout == b"child\n"


def test_output_larger_than_a_pipe_is_whole(box: Sandbox) -> None:
    assert box.run("print('x' * 500_000)").stdout == b"x" * 500_000 + b"\n"


def test_exception_is_exit_code_1_with_its_traceback(box: Sandbox) -> None:
    box.run("x = 1")
    result = box.run("def f():\n    return 1 / 0\nf()")
    assert (result.verdict, result.exit_code) == (Verdict.EXIT, 1)
    assert result.stderr.startswith(b"Traceback")
    assert result.stderr.endswith(b"ZeroDivisionError: division by zero\n")
    assert b"/.harena" not in result.stderr, "our own frames are not the user's"
    assert box.run("print(x)").stdout == b"1\n", "the state outlives it"


def test_syntax_error_is_exit_code_1(box: Sandbox) -> None:
    result = box.run("x = (")
    assert (result.verdict, result.exit_code) == (Verdict.EXIT, 1)
    assert b"SyntaxError" in result.stderr


@pytest.mark.parametrize(("code", "exit_code"), [("0", 0), ("3", 3), ("None", 0), ("'gone'", 1)])
def test_sys_exit_ends_the_run_and_not_the_interpreter(box: Sandbox, code: str, exit_code: int) -> None:
    box.run("x = 1")
    assert box.run(f"import sys; sys.exit({code})").exit_code == exit_code
    assert box.run("print(x)").stdout == b"1\n"


def test_timeout_ends_the_interpreter_and_says_so(box: Sandbox) -> None:
    box.run("x = 1")
    result = box.run("print('before', flush=True)\nwhile True: pass", limits=Limits(wall_s=0.5))
    assert (result.verdict, result.exit_code, result.stdout) == (Verdict.TIME, None, b"before\n")
    assert "wall_s=0.5" in result.detail
    assert "its variables are gone" in result.detail
    after = box.run("print('x' in globals())")
    assert (after.verdict, after.stdout) == (Verdict.OK, b"False\n")


def test_timeout_ends_its_children(box: Sandbox, marker: str, ends_on_host: Callable[[str], None]) -> None:
    source = f"import subprocess\nsubprocess.Popen(['setsid', 'sleep', '{marker}'])\nwhile True: pass"
    assert box.run(source, limits=Limits(wall_s=0.5)).verdict is Verdict.TIME
    ends_on_host(marker)


def test_os_exit_ends_the_interpreter_and_says_so(box: Sandbox) -> None:
    box.run("x = 1")
    result = box.run("import os; print('bye', flush=True); os._exit(3)")
    assert (result.verdict, result.exit_code, result.stdout) == (Verdict.EXIT, 3, b"bye\n")
    assert "its variables are gone" in result.detail
    assert box.run("print('x' in globals())").stdout == b"False\n"


def test_crash_is_a_signal(box: Sandbox) -> None:
    result = box.run("import ctypes; ctypes.string_at(0)")
    assert (result.verdict, result.signal) == (Verdict.SIGNAL, 11)
    assert box.run("print(1)").stdout == b"1\n"


def test_too_much_memory_is_a_verdict(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(limits=SMALL)
    assert box.run("x = bytearray(10**9)").verdict is Verdict.MEMORY
    assert box.run("print(1)").stdout == b"1\n"


def test_memory_taken_step_by_step_is_a_verdict(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(limits=SMALL)
    assert box.run("x = []\nwhile True: x.append(bytearray(10**6))").verdict is Verdict.MEMORY
    assert box.run("print(1)").stdout == b"1\n"


def test_too_many_processes_is_a_verdict(make_box: Callable[..., Sandbox]) -> None:
    box = make_box(limits=Limits(processes=8, wall_s=20))
    source = "import subprocess\nheld = [subprocess.Popen(['sleep', '60']) for _ in range(20)]"
    assert box.run(source).verdict is Verdict.PROCESSES


def test_flood_of_output_is_a_verdict_and_what_fitted_is_returned(box: Sandbox) -> None:
    result = box.run("while True: print('x' * 1000)", limits=Limits(output_bytes=50_000))
    assert result.verdict is Verdict.OUTPUT
    assert len(result.stdout) == 50_000
    assert "output_bytes=50000" in result.detail
    assert box.run("print(1)").stdout == b"1\n"


def test_output_at_the_limit_fits(box: Sandbox) -> None:
    assert box.run("print('x' * 999)", limits=Limits(output_bytes=1000)).verdict is Verdict.OK
    assert box.run("print('x' * 1000)", limits=Limits(output_bytes=1000)).verdict is Verdict.OUTPUT


def test_input_is_empty(box: Sandbox) -> None:
    assert b"EOFError" in box.run("input()").stderr


def test_sees_the_same_files_as_commands(box: Sandbox) -> None:
    box.run("open('a', 'w').write('from run')")
    assert box.exec(["cat", "a"]).stdout == b"from run"
    box.write("b", b"from write")
    assert box.run("print(open('b').read())").stdout == b"from write\n"


def test_text_may_be_any_unicode(box: Sandbox) -> None:
    assert box.run("s = 'ü€😀'\nprint(s)").stdout.decode() == "ü€😀\n"


def test_broken_builtins_hurt_nobody_but_the_guest(box: Sandbox) -> None:
    box.run("import builtins\nbuiltins.len = builtins.print = builtins.compile = builtins.exec = None")
    box.run("import sys; sys.stdout = sys.stderr = None; sys.modules.clear()")
    assert box.exec(["echo", "1"]).stdout == b"1\n"
    assert box.call("def f():\n    return len('abc')", "f").value == 3


def test_closed_streams_hurt_nobody_but_the_guest(box: Sandbox) -> None:
    box.run("import os\nos.close(1); os.close(2)")
    assert box.run("x = 1").verdict in set(Verdict), "it answers"
    assert box.exec(["echo", "1"]).stdout == b"1\n"


def test_runs_of_many_threads_take_turns(box: Sandbox) -> None:
    box.run("n = 0")
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: box.run("n += 1; print(n)"), range(40)))
    assert sorted(int(result.stdout) for result in results) == list(range(1, 41))


def test_usage_is_that_of_the_run_alone(box: Sandbox) -> None:
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    first, second = box.run(busy), box.run("pass")
    assert 0.25 < first.usage.cpu_s < first.usage.wall_s + 0.2
    assert second.usage.cpu_s < 0.2
