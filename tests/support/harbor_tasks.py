"""Write twenty small tasks with oracle solutions in Harbor's format: python tests/support/harbor_tasks.py FOLDER [IMAGE].

harena image import debian.tar --name debian:test     # a Debian with bash, Python, git and passwd
harbor run -p FOLDER -a oracle --env harena.adapters.harbor:HarenaEnvironment
"""

from __future__ import annotations

import pathlib
import sys

TASKS = {
    "hello": ("echo 'Hello, world!' > hello.txt", "grep -qx 'Hello, world!' hello.txt"),
    "sum": ("seq 1 100 | paste -sd+ | sed 's/^/print(/;s/$/)/' | python3 > sum.txt", '[ "$(cat sum.txt)" = 5050 ]'),
    "reverse": ("echo abc | rev > r.txt", '[ "$(cat r.txt)" = cba ]'),
    "sort": ("printf 'b\\na\\nc\\n' | sort > s.txt", '[ "$(head -1 s.txt)" = a ]'),
    "json": (
        "python3 -c \"import json;json.dump({'a':1},open('a.json','w'))\"",
        "python3 -c \"import json;assert json.load(open('a.json'))=={'a':1}\"",
    ),
    "mkdirs": ("mkdir -p a/b/c && touch a/b/c/d", "[ -f a/b/c/d ]"),
    "symlink": ("echo x > t && ln -s t l", '[ "$(cat l)" = x ]'),
    "chmod": ("echo '#!/bin/sh' > run && chmod 755 run", "[ -x run ]"),
    "git": (
        "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first",
        "git log --oneline | grep -q first",
    ),
    "script": ("printf 'def f(x):\\n    return x*2\\n' > m.py", "python3 -c 'import m; assert m.f(4)==8'"),
    "background": ("(sleep 0.1; echo done > late) & wait", "grep -q done late"),
    "unicode": ("printf 'h\\303\\244llo' > u.txt", '[ "$(wc -c < u.txt)" -eq 6 ]'),
    "tar": ("mkdir d; echo 1 > d/f; tar czf d.tgz d; rm -r d", 'tar xzf d.tgz && [ "$(cat d/f)" = 1 ]'),
    "grep": ("printf 'x=1\\ny=2\\n' > c; grep y c > g", '[ "$(cat g)" = y=2 ]'),
    "large": ("head -c 20000000 /dev/zero > big", '[ "$(stat -c %s big)" -eq 20000000 ]'),
    "users": (
        "useradd -m worker && su worker -s /bin/sh -c 'echo mine > /home/worker/f'",
        '[ "$(stat -c %U /home/worker/f)" = worker ]',
    ),
    "passwd": ("cp /etc/passwd p", "grep -q root p"),
    "etc": ("echo setting=1 > /etc/app.conf", "grep -q setting=1 /etc/app.conf"),
    "processes": ("for i in 1 2 3 4 5 6 7 8; do (echo $i > p$i) & done; wait", '[ "$(cat p? | wc -l)" -eq 8 ]'),
    "fib": (
        "python3 - <<'E'\na,b=0,1\nfor _ in range(30): a,b=b,a+b\nopen('fib','w').write(str(a))\nE",
        '[ "$(cat fib)" = 832040 ]',
    ),
}

CONFIG = """schema_version = "1.4"
[verifier]
timeout_sec = 300.0
[agent]
timeout_sec = 300.0
[environment]
docker_image = "{image}"
network_mode = "no-network"
workdir = "/app"
memory_mb = 1024
"""
CHECK = "#!/bin/bash\nif {test}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def main(root: pathlib.Path, image: str = "debian:test") -> None:
    for name, (solve, test) in TASKS.items():
        files = {
            "instruction.md": f"Task {name}.\n",
            "task.toml": CONFIG.format(image=image),
            "environment/.keep": "",
            "solution/solve.sh": f"#!/bin/bash\nset -e\n{solve}\n",
            "tests/test.sh": CHECK.replace("{test}", test),
        }
        for path, text in files.items():
            (root / name / path).parent.mkdir(parents=True, exist_ok=True)
            (root / name / path).write_text(text)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *sys.argv[2:3])
