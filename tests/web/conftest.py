"""One arena with one browser before it, for all tests of the page: each test is a new visitor."""

from __future__ import annotations

import pytest

from support import arenas, driver


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    if driver.missing():
        pytest.skip(driver.missing())
    with arenas.running(tmp_path_factory.mktemp("arena")) as site:
        yield site


@pytest.fixture(scope="session")
def chromium(site):
    with driver.started() as browser:
        yield browser


@pytest.fixture
def browser(chromium, site):
    chromium.origin = site.url
    chromium.size(*driver.DESKTOP)
    chromium.media()
    chromium.forget()
    yield chromium
    chromium.open("about:blank")  # closes its streams
