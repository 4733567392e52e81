from __future__ import annotations

import importlib
import pkgutil

import harena
from harena.api.http.errors import KNOWN, answer_of
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


def test_an_unknown_address_is_a_page_for_browsers_and_json_for_programs(client):
    page = client.get("/nowhere", headers={"Accept": "text/html,*/*"})
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert client.get("/nowhere").json()["code"] == "not_found"
    assert client.get("/v1/nowhere", headers={"Accept": "text/html"}).json()["code"] == "not_found"
    assert client.post("/nowhere", headers={"Accept": "text/html"}).json()["code"] == "not_found"


def test_an_unknown_environment_names_those_that_there_are(client):
    detail = client.get("/v1/environments/Nowhere-v0").json()["detail"]
    assert "CartPole-v1" in detail.partition("Environments here: ")[2]
