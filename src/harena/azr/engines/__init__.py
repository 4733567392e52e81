"""Engines that write completions and learn: `protocol` says what one does, `registry` finds it by name."""

from __future__ import annotations
