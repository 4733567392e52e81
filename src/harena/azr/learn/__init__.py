"""Learning: advantages, the loss, the optimizer and what is measured of them."""

from __future__ import annotations
