"""The messages of proto/executor.proto, generated: the command is in that file."""

from __future__ import annotations
