"""What happened: stored in order (`log`), and told to those who listen (`bus`)."""

from __future__ import annotations
