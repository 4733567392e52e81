"""How a box executes: calls, programs, commands, processes, shells, conversations and forks."""

from __future__ import annotations
