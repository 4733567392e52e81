"""One match: `play` runs it, `seat` speaks with an agent's box, `lockstep` plays many at once, `runner` and `worker`
spread matches over processes.
"""

from __future__ import annotations
