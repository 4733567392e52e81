"""What a box does, whoever makes it."""

from __future__ import annotations
