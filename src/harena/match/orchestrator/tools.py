"""Copies harena-seat to where the agents' containers of a match's pod find it. Runs in the pod's init container, so it
imports nothing that takes time.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "native" / "harena-seat"


def install(folder: Path) -> int:
    if not PROGRAM.exists():
        print(f"{PROGRAM} is missing: build the image with a C compiler and a static libc", file=sys.stderr)
        return 1
    shutil.copyfile(PROGRAM, folder / PROGRAM.name)
    (folder / PROGRAM.name).chmod(0o755)
    return 0


if __name__ == "__main__":
    sys.exit(install(Path(sys.argv[1])))
