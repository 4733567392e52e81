"""A program in a box sees what `python program.py` in the workspace would show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harena import Limits, Sandbox, SandboxPool
from harena.testing.contract.shared import Shared

Door = Callable[[str], str]
LIMITS = Limits(wall_s=60)


@pytest.fixture(params=["run", "call", "program", "group"])
def door(request: pytest.FixtureRequest, shared: Shared) -> Door:
    """Runs a source, which must end well, and returns what it printed."""

    def run(source: str) -> str:
        match request.param:
            case "run":
                result = shared.box.run(source, limits=LIMITS)
            case "call":
                result = shared.box.call(f"{source}\ndef nothing(): pass", "nothing", limits=LIMITS)
            case "program":
                (result,) = shared.pool.map([source], limits=LIMITS)
            case _:
                _, result = shared.pool.map(["import sys; sys.argv[0]", source], group=2, limits=LIMITS)
        assert result.ok, (result.detail, result.stderr.decode())
        return result.stdout.decode()

    return run


def test_arguments_are_the_program_alone(door: Door) -> None:
    assert door("import sys; print(sys.argv, sys.orig_argv[1:])") == "['program.py'] ['program.py']\n"


def test_unittest_and_argparse_find_no_arguments_of_ours(door: Door) -> None:
    source = """
import argparse, sys, unittest
class Check(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(1 + 1, 2)
parser = argparse.ArgumentParser()
parser.add_argument("--depth", default=3)
print(parser.parse_args().depth)
unittest.main(exit=False, testRunner=unittest.TextTestRunner(stream=sys.stdout))
"""
    shown = door(source)
    assert shown.startswith("3\n")
    assert "Ran 1 test" in shown
    assert shown.endswith("OK\n")


def test_workspace_is_the_first_place_of_imports(door: Door) -> None:
    source = """
import sys
open("beside_it.py", "w").write("value = 42")
import beside_it
print(sys.path[0], beside_it.value)
"""
    assert door(source) == "/workspace 42\n"


@pytest.mark.parametrize("cookie", ["", "# -*- coding: latin-1 -*-\n", "\ufeff"], ids=["none", "latin-1", "bom"])
def test_source_is_text_whatever_its_cookie_says(door: Door, cookie: str) -> None:
    assert door(f"{cookie}print(ascii('é'), ascii('€'))") == r"'\xe9' '\u20ac'" + "\n"


def test_annotations_are_values(door: Door) -> None:
    """The runner's own `from __future__ import annotations` does not reach into programs."""
    assert door("def f(x: int): pass\nprint(f.__annotations__)") == "{'x': <class 'int'>}\n"


def test_source_of_a_function_is_found(door: Door) -> None:
    source = "import inspect\ndef double(n):\n    return 2 * n  # twice\nprint(inspect.getsource(double))"
    assert "return 2 * n  # twice" in door(source)


def test_traceback_shows_the_lines(shared: Shared) -> None:
    source = "def fail():\n    return 1 / 0  # here\n\nfail()"
    results = [shared.box.run(source), *shared.pool.map([source, "print(1)"]), *shared.pool.map([source] * 2, group=2)]
    for result in results[:1] + results[1:2] + results[3:]:
        assert b"return 1 / 0  # here" in result.stderr
        assert b"/.harena" not in result.stderr


def test_nothing_of_the_runner_can_be_imported(door: Door) -> None:
    source = """
import sys
print([name for name in sys.modules if "guest" in name or "harena" in name])
print([path for path in (*sys.path, *sys.path_importer_cache) if path.startswith("/.harena/guest")])
for name in ("guest", "start", "wire", "program", "files", "zygote", "loop"):
    try:
        __import__(name)
    except ImportError:
        continue
    print(name)
"""
    assert door(source) == "[]\n[]\n"


def test_each_run_has_lines_of_its_own(box: Sandbox) -> None:
    assert box.run("def fail():\n    return 1 / 0  # defined in the first run").ok
    stderr = box.run("x = 1\nfail()  # called in the second").stderr
    assert b"# defined in the first run" in stderr
    assert b"# called in the second" in stderr


def test_module_written_between_runs_is_found(box: Sandbox) -> None:
    for number in range(10):
        box.write(f"module_{number}.py", f"value = {number}")
        assert box.run(f"import module_{number} as m; print(m.value)").stdout == f"{number}\n".encode()


def test_excepthook_of_a_program_is_called(pool: SandboxPool) -> None:
    source = "import sys\nsys.excepthook = lambda kind, error, trace: print(kind.__name__, trace.tb_lineno)\n1 / 0"
    (result,) = pool.map([source])
    assert (result.exit_code, result.stdout, result.stderr) == (1, b"ZeroDivisionError 3\n", b"")


def test_files_are_looked_after_without_modules_of_the_workspace(box: Sandbox) -> None:
    box.write("shutil.py", "raise SystemExit('imported')")
    box.exec(["mkdir", "folder"])
    box.remove("folder")
    assert [info.path for info in box.list()] == ["shutil.py"]
