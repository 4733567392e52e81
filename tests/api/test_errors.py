from __future__ import annotations

import importlib
import pkgutil

import harena
from harena.api.errors import KNOWN, answer_of
from harena.errors import HarenaError

OURS = ("harena.arena.", "harena.match.")


def every(kind):
    return {kind}.union(*map(every, kind.__subclasses__()))


def test_every_error_of_ours_has_a_status_and_a_code():
    for module in pkgutil.walk_packages(harena.__path__, "harena."):
        if module.name.startswith(OURS) and ".executor" not in module.name and "harness" not in module.name:
            importlib.import_module(module.name)
    for kind in every(HarenaError):
        if kind.__module__.startswith((*OURS, "harena.errors")):
            answer = next(KNOWN[parent] for parent in kind.__mro__ if parent in KNOWN)
            assert 400 <= answer.status < 600
            assert answer.code.isidentifier()


def test_what_is_the_platforms_fault_is_not_the_clients():
    assert answer_of(HarenaError("x")).status == 500
    assert answer_of(ZeroDivisionError()).status == 500
    assert not answer_of(KeyError()).told
