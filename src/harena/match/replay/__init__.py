"""Replays: recorded and verified (`replay`), their bytes (`format`), as JSON (`json_export`), as a page (`viewer`)."""

from __future__ import annotations
