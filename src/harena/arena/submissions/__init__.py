"""Submissions: taken in, evaluated on hidden episodes, ranked, and checked again.

`service` is the way in; `intake` reads what was sent and packs it, `script` and `evaluate` play it, `draws` keeps each
result, `verify` does it again.
"""

from __future__ import annotations
