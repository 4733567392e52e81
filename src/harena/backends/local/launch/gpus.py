"""NVIDIA GPUs for a box: their device nodes, and those libraries of the driver that lie outside of /usr.

Only the GPUs that a spec names have a node in the box. Nodes for profiling (nvidia-uvm-tools) and for parts of GPUs
(nvidia-caps) are left out.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from harena.errors import IsolationUnavailable

DEV = "/dev"
CONTROL = ("nvidiactl", "nvidia-uvm")
"""Nodes that every GPU needs."""
SHOWN = ("/usr/", "/lib/", "/lib64/")
LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig")
LDCONFIG_S = 10


@dataclass(frozen=True, slots=True)
class Gpus:
    nodes: tuple[str, ...]
    """Names of device nodes below DEV."""
    libraries: tuple[str, ...]
    """Files that are shown at their own place."""
    count: int

    def words(self) -> list[str]:
        """Words of the plan."""
        words = [word for name in self.nodes for word in ("bind", f"{DEV}/{name}", f"/dev/{name}", "dev")]
        return words + [word for path in self.libraries for word in ("bind", path, path, "ro")]

    def environment(self) -> dict[str, str]:
        # CUDA numbers the GPUs whose nodes it finds.
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(self.count)))}


def find(wanted: int | str | Sequence[str]) -> Gpus | None:
    """Return what a box with `Spec.gpus` shows, None for a box without. Raises IsolationUnavailable for a GPU that this
    machine does not have."""
    if wanted in (0, ()):
        return None
    here = sorted(int(name[6:]) for name in os.listdir(DEV) if re.fullmatch(r"nvidia[0-9]{1,3}", name))
    if not here:
        raise IsolationUnavailable(
            f"this machine has no {DEV}/nvidia0, so no NVIDIA GPU",
            fix="install the driver and run nvidia-smi once, which makes the nodes; in a container, pass the GPUs in",
        )
    if wanted == "all":
        chosen = here
    elif isinstance(wanted, int):
        chosen = here[:wanted]
    else:
        chosen = [int(name) for name in wanted]
    if isinstance(wanted, int) and len(chosen) < wanted:
        raise IsolationUnavailable(f"this machine has {len(here)} GPUs, not {wanted}", fix="ask for fewer (Spec.gpus)")
    nodes = (*(f"nvidia{number}" for number in chosen), *CONTROL)
    for name in nodes:
        try:
            is_device = stat.S_ISCHR(os.stat(f"{DEV}/{name}", follow_symlinks=False).st_mode)
        except FileNotFoundError:
            is_device = False
        if not is_device:
            fix = "run `nvidia-modprobe -u -c 0`" if name in CONTROL else f"there is {', '.join(map(str, here))}"
            raise IsolationUnavailable(f"this machine has no device {DEV}/{name}", fix=fix)
    return Gpus(nodes, _libraries(), len(chosen))


def _libraries() -> tuple[str, ...]:
    """Libraries of the driver that the linker knows and that a box would not show."""
    tool = next((path for path in LDCONFIG if os.access(path, os.X_OK)), None)
    if tool is None:
        return ()
    try:
        done = subprocess.run([tool, "-p"], capture_output=True, text=True, timeout=LDCONFIG_S, check=False, env={})
    except (OSError, subprocess.SubprocessError):
        return ()
    found = re.findall(r"^\s+lib(?:cuda|nvidia|nvcuvid)\S* .*=> (/\S+)$", done.stdout, re.MULTILINE)
    return tuple(dict.fromkeys(path for path in found if not path.startswith(SHOWN) and os.path.isfile(path)))
