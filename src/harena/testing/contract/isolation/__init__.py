"""What holds an execution: limits, quotas, memory, the network, and what is visible."""

from __future__ import annotations
