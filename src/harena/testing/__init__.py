"""The tests that every backend must pass: what a box does (`contract`) and what it must withstand (`attacks`).

    HARENA_TEST_BACKEND=mine pytest --pyargs harena.testing

runs both on the backend of that name. Without the variable they run on every way in which Harena itself makes boxes.
Needs pytest and pytest-timeout.
"""

from __future__ import annotations

import os
import sys

BACKEND = os.environ.get("HARENA_TEST_BACKEND", "")
"""The backend that is tested; empty: Harena's own, each in its variants."""


def forget_what_was_found() -> None:
    """What Harena found out about the host is cached for the life of the process; a variant changes it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("harena.backends.", "harena.sandbox.backend")):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if callable(clear):
                    clear()
