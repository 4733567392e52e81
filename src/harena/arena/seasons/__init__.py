"""Seasons of an environment (`service`), and the finals that decide them (`finals`)."""

from __future__ import annotations
