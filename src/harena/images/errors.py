"""Errors of images. Each message is one sentence that names the cause and, where there is one, the fix."""

from __future__ import annotations

from harena.errors import HarenaError, SpecError


class ImageError(HarenaError):
    """An image cannot be pulled, read, unpacked or removed."""


class BadReference(ImageError, SpecError):
    """The name of an image, a digest or a platform cannot be used. Raised before anything changed."""


class ImageNotFound(ImageError):
    """The registry, the archive or the store has no such image."""


class RegistryError(ImageError):
    """A registry cannot be reached, refuses access, or breaks the protocol."""


class BadImage(ImageError):
    """The bytes of an image are not what they claim to be, or exceed a cap. Nothing of it was kept."""


class ImageStoreError(ImageError):
    """The store cannot be read or written: the disk is full, or a permission is missing."""


class ImageCancelled(ImageError):
    """The pull or the import was interrupted. What was downloaded is kept for the next one."""
