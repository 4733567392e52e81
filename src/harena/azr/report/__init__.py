"""What a run left behind: its journal, scores, plots and the report."""

from __future__ import annotations
