"""Never gets ready."""

from __future__ import annotations

while True:
    pass
