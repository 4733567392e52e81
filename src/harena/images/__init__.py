"""OCI images without Docker or root: pull, import, build, keep and share their layers.

`reference` and `manifest` have the names and documents, `registry` pulls, `store` keeps, `unpack` unpacks layers in a
jail, `build` builds with the parts in `builder`, and `cli` and `commands` are `harena image`. `settings` reads the
environment variables, and `files` has locks and writes.

Names are loaded on first use, so that `import harena` stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harena.lazy import load_on_use

if TYPE_CHECKING:
    from harena.images.errors import BadImage as BadImage
    from harena.images.errors import BadReference as BadReference
    from harena.images.errors import ImageError as ImageError
    from harena.images.errors import ImageNotFound as ImageNotFound
    from harena.images.errors import ImageStoreError as ImageStoreError
    from harena.images.errors import RegistryError as RegistryError
    from harena.images.manifest import ImageConfig as ImageConfig
    from harena.images.store.image_store import ImageStore as ImageStore
    from harena.images.store.leases import Image as Image
    from harena.images.store.leases import Lease as Lease

__all__ = [
    "BadImage",
    "BadReference",
    "Image",
    "ImageConfig",
    "ImageError",
    "ImageNotFound",
    "ImageStore",
    "ImageStoreError",
    "Lease",
    "RegistryError",
]

__getattr__, __dir__ = load_on_use(
    globals(),
    {
        "harena.images.errors": "BadImage BadReference ImageError ImageNotFound RegistryError ImageStoreError",
        "harena.images.store.leases": "Image Lease",
        "harena.images.manifest": "ImageConfig",
        "harena.images.store.image_store": "ImageStore",
    },
)
