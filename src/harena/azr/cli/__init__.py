"""The command `harena azr`: `commands` has what it does, `options` its options, `study` what studies need."""

from __future__ import annotations
