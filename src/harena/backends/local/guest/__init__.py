"""The agent inside a box: standard library only, run by whatever Python the box has.

The box sees this folder read-only as /.harena/guest; the host imports only this file. Nothing in here is trusted by the
host: most of it runs beside hostile code in the guest's own process, and the host believes none of what it writes.

start.py     entry point: loads what a role needs and hides it from guests
wire.py      constants of the protocol
program.py   runs one program, a call or a group of programs
files.py     the file server
zygote.py    the warm Python that the native library forks: programs, the interpreter, servers

The rest serves a box without the native library, and follows the C sources, where the reasons are:

loop.py      pid 1 of the box: takes requests and reports how jobs ended (native/serve.c)
job.py       one job: its namespaces, its init, its limits, its cgroup (native/job.c, confine.c)
watch.py     memory, CPU and process limits where no cgroup enforces them (native/watch.c)
root.py      finishes the root that bubblewrap began (native/box.c)
kernel.py    system calls that Python has no name for, and small helpers
template.py  the warm Python that programs are forked from

bare/ serves a box without namespaces (docs/isolation.md).
"""

from __future__ import annotations

MIN_PYTHON = (3, 8)
"""Oldest Python that can run this folder."""
