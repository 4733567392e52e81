"""The base of every error that training raises itself: a mistake or a damaged file, which the command explains."""

from __future__ import annotations

from harena.errors import HarenaError


class TrainingError(HarenaError):
    """Something that the person who started the run can put right; the message says how."""
