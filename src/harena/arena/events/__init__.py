"""In-process event bus (`bus`): wakes subscribers when `db.events` has news."""

from __future__ import annotations
