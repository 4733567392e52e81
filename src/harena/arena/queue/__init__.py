"""Jobs: stored (`jobs`), done by worker threads (`workers`), or waited for by a caller (`desk`)."""

from __future__ import annotations
