"""Running matches: `play` runs one, `seat` communicates with an agent's box, `lockstep` plays many at once, `runner`
and `worker` spread matches over processes.
"""

from __future__ import annotations
