from __future__ import annotations

from collections.abc import Iterator

import pytest

from support import clusters
from support.clusters import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    api = clusters.api()
    image = clusters.image()
    clusters.apply_definitions(api)
    folder = tmp_path_factory.mktemp("kubernetes")
    with clusters.namespace(api) as namespace:
        world = World(api, namespace, image, folder, clusters.start_operator(namespace, image, folder))
        try:
            yield world
        finally:
            world.operator.stop()
