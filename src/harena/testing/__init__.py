"""The tests that every backend must pass: what a box does (`contract`) and what it must withstand (`attacks`).

    HARENA_TEST_BACKEND=mine pytest --pyargs harena.testing

runs both on the backend of that name, or on the server of that URL with the token in HARENA_TOKEN. Without the variable they run on every way in which Harena itself makes boxes.

    HARENA_TEST_IMAGE=python:3.12-slim pytest --pyargs harena.testing

runs them on boxes from an image, named by its reference or by the path of an archive. The image needs sh and Python.
Needs pytest and pytest-timeout.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from harena.sandbox.spec import Spec

BACKEND = os.environ.get("HARENA_TEST_BACKEND", "")
"""The backend that is tested; empty: Harena's own, each in its variants."""
IMAGE = os.environ.get("HARENA_TEST_IMAGE", "")
"""The image that the boxes are made from; empty: none."""
IMPORTED = "harena.test/tested:latest"


def make_spec(**fields: Any) -> Spec:
    """A spec of the boxes that are tested."""
    return Spec(image=_reference(), **fields) if IMAGE else Spec(**fields)


@functools.cache
def _reference() -> str:
    if not os.path.isabs(IMAGE):
        return IMAGE
    from harena.images import ImageStore

    return ImageStore.default().import_file(IMAGE, name=IMPORTED)[0].reference


def forget_what_was_found() -> None:
    """What Harena found out about the host is cached for the life of the process; a variant changes it."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("harena.backends.", "harena.sandbox.backend")):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if callable(clear):
                    clear()
