"""`python -m harena`: the command, for launchers that start modules (torchrun, accelerate)."""

from __future__ import annotations

import sys

from harena.cli import main

if __name__ == "__main__":
    sys.exit(main())
