"""What a box does, whoever makes it: how it executes (`execution`), what holds it (`isolation`), its files, its spec
and its life."""

from __future__ import annotations
