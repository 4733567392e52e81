"""Run by test_image_ordinary.py as an ordinary user: an image from pull to removal. Prints the name of the ids."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harena.images import ImageError, ImageStore
from harena.images.settings import ImageSettings
from support.registries import Registry, tar_of


def main() -> None:
    folder = Path(sys.argv[1])
    store = ImageStore(folder, settings=ImageSettings(folder))
    with Registry() as registry:
        layers = [tar_of({f"d{n}": None, f"d{n}/file": os.urandom(1000)}) for n in range(3)]
        name = registry.tag("app:1", registry.add_image(layers))
        image = store.pull(name)
        with image.lease() as lease:
            assert len(lease.layers) == 3
            assert store.gc(max_bytes=0).images == ()
        bad = registry.tag("bad:1", registry.add_image([layers[0], tar_of({"../x": b""})]))
        try:
            store.pull(bad)
            raise AssertionError("a hostile layer was accepted")
        except ImageError:
            pass
        # What a killed process left over is removed, whoever owns its files.
        (folder / "layers" / store.layers.ids.name / f"sha256-{image.layers[0].diff_id.hex}").rename(
            folder / "tmp" / "trash-1"
        )
        assert store.find(name) is None
        store.pull(name)
        assert store.remove(name).layers == 3
    assert not list(folder.glob("layers/*/*"))
    assert not list(folder.glob("tmp/*"))
    assert not list(folder.glob("partial/*"))
    print(store.layers.ids.name)


if __name__ == "__main__":
    main()
