"""Jobs done by worker threads (`workers`), or waited for by a caller (`desk`). `db.jobs` stores them."""

from __future__ import annotations
