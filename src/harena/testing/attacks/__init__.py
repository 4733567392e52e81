"""What a box must withstand: every folder is an attack and what must come of it."""

from __future__ import annotations
