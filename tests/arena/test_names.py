"""Names that deceive whoever reads them are refused where they come in; strangers with one name are two owners."""

from __future__ import annotations

import pytest

from harena.arena.db.models import has_mark, marked, name_text, unmarked, unseen
from harena.arena.db.store import Store
from harena.arena.settings import EnvironmentSettings
from harena.errors import SpecError

DECEIVING = {
    "right-to-left override": "ann\u202egnp.exe",
    "embedding": "\u202bann",
    "isolate": "ann\u2066",
    "left-to-right mark": "ann\u200e",
    "Arabic letter mark": "ann\u061c",
    "zero width space": "an\u200bn",
    "zero width joiner": "an\u200dn",
    "byte order mark": "\ufeffann",
    "soft hyphen": "an\u00adn",
    "a line": "ann\nbob",
    "a line separator": "ann\u2028bob",
    "a terminal's escape": "\x1b[31mann",
    "a blank letter": "\u3164",
    "a blank of Braille": "\u2800",
    "tags": "ann\U000e0061",
    "a variation selector": "ann\ufe0f",
    "a pile of accents": "a" + "\u0301" * 20,
    "unassigned": "ann\U000e0fff",
    "private": "ann\ue000",
    "no-break space": "ann\u00a0",
}


@pytest.mark.parametrize("name", DECEIVING.values(), ids=DECEIVING.keys())
def test_a_name_that_deceives_is_refused_and_the_character_named(name):
    hidden = unseen(name)
    with pytest.raises(SpecError, match=f"U\\+{ord(hidden):04X}"):
        name_text(name, "a name")


@pytest.mark.parametrize(
    "name", ["ann", "Zoë", "中文", "שלום", "مرحبا", "Việt", "e\u0323\u0302", "🏆 top 10 %", "a_b-c.py"]
)
def test_honest_names_of_any_language_are_taken(name):
    assert name_text(name, "a name") == name


def test_it_is_refused_at_every_door_of_the_store(url):
    store = Store(url)
    bad = DECEIVING["right-to-left override"]
    for call in (
        lambda: store.owners.ensure(bad),
        lambda: store.keys.create(bad, []),
        lambda: store.keys.create("ann", [], label=bad),
        lambda: store.environments.put(bad, "ladder"),
        lambda: store.seasons.start("x", bad),
        lambda: store.submissions.add("ann", "x", algorithm=bad, digest="0" * 64, main_file="a.py"),
        lambda: store.submissions.add("ann", "x", algorithm="a", digest="0" * 64, main_file=bad),
        lambda: store.keys.create("ann#0123abcd", []),
    ):
        with pytest.raises(SpecError):
            call()
    store.close()


@pytest.mark.parametrize("field", ["title", "summary", "rules", "sample_agent"])
def test_the_texts_of_an_environment_hide_nothing(field):
    with pytest.raises(SpecError, match=r"U\+202E"):
        EnvironmentSettings.parse({field: "a\u202eb"}).check_texts()
    EnvironmentSettings.parse({field: "two words" if field == "title" else "two\n\tlines"}).check_texts()


def test_a_mark_tells_clients_apart_and_not_who_they_are():
    one, other = marked("ann", "client one"), marked("ann", "client two")
    assert one == marked("ann", "client one") != other
    assert unmarked(one) == unmarked(other) == "ann"
    assert has_mark(one)
    assert not has_mark("ann#1")
    assert len(marked("a" * 200, "client")) == 200
