"""The commands `harena match`, `harena replay` and their relatives."""

from __future__ import annotations
