"""Upper bounds of a layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Caps:
    """Upper bounds of what one layer may contain."""

    bytes: int = 64 << 30
    """Sum of the sizes of all files. Holes count."""
    files: int = 2_000_000
    """Members of the archive, and folders that they imply."""
    archive_bytes: int = 96 << 30
    depth: int = 256
    """Folders on the way to a file."""
    name_bytes: int = 4095
    """Bytes of a whole path, and of the target of a symbolic link; the kernel takes no more."""
    header_bytes: int = 1 << 20
    """Bytes of one extended header."""
    xattrs: int = 64
    """Extended attributes of one file."""
    xattr_bytes: int = 64 << 10
    """Bytes of all extended attributes of one file, names included."""
    sparse_parts: int = 1 << 16
    """Parts of a sparse file that are not holes."""
