"""Checking answers by running them in boxes: `verify` decides, `executor` runs, `boxed` is the side inside."""

from __future__ import annotations
