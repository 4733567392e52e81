"""`@pytest.mark.boxed` in a pytest run of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough
TESTS = """
import os, pathlib, pytest

def test_on_the_host():
    assert pathlib.Path(SECRET).exists()

@pytest.fixture
def made_in_the_box():
    return os.getpid()

@pytest.mark.boxed
def test_cannot_see_the_host(made_in_the_box):
    assert made_in_the_box == os.getpid()
    assert not pathlib.Path(SECRET).exists()

@pytest.mark.boxed
@pytest.mark.parametrize("number", [1, 2])
def test_numbers(number):
    print("seen in the box")
    assert number == 1

@pytest.mark.boxed
def test_skips():
    pytest.skip("not today")

@pytest.mark.boxed(wall_s=1)
def test_hangs():
    while True: pass

@pytest.mark.boxed(memory_mb=64)
def test_eats_memory():
    "a" * 10**10

@pytest.mark.boxed
def test_ends_its_process():
    os._exit(0)

@pytest.mark.boxed
def test_has_no_network():
    import socket
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", PORT), timeout=1)

@pytest.mark.boxed(show=("library",))
def test_imports_what_is_shown():
    import shown_module
    assert shown_module.VALUE == 7
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("boxed")
    (folder / "tests").mkdir()
    (folder / "library").mkdir()
    (folder / "library/shown_module.py").write_text("VALUE = 7\n")
    secret = folder / "secret.txt"
    secret.write_text("a file of the host")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        text = TESTS.replace("SECRET", repr(str(secret))).replace("PORT", str(server.getsockname()[1]))
        (folder / "tests/test_sample.py").write_text(text)
        options = ["-v", "-rA", "-p", "no:cacheprovider", "--rootdir", str(folder)]
        options += ["-c", "/dev/null", "-p", "no:schemathesis"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, "tests"], cwd=folder, capture_output=True, text=True
        )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("test", "outcome"),
    [
        ("test_on_the_host", "PASSED"),
        ("test_cannot_see_the_host", "PASSED"),
        ("test_numbers[1]", "PASSED"),
        ("test_numbers[2]", "FAILED"),
        ("test_skips", "SKIPPED"),
        ("test_hangs", "FAILED"),
        ("test_eats_memory", "FAILED"),
        ("test_ends_its_process", "FAILED"),
        ("test_has_no_network", "PASSED"),
        ("test_imports_what_is_shown", "PASSED"),
    ],
)
def test_a_boxed_test_has_the_outcome_that_it_would_have_on_the_host(report, test, outcome):
    assert f"test_sample.py::{test} {outcome}" in report, report


def test_the_report_says_why_a_test_was_ended(report):
    assert "the box ended the test: time" in report
    assert "assert 2 == 1" in report
    assert "seen in the box" in report
