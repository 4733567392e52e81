"""`python -m harena.cli`: the command."""

from __future__ import annotations

import sys

from harena.cli import main

if __name__ == "__main__":
    sys.exit(main())
