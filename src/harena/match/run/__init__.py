"""Running matches: `play` runs one, `seat` communicates with an agent's box (`agent_box`), `image_seat` with an image,
`far_seat` with a box elsewhere, `lockstep` plays many at once, `runner` and `worker` spread matches over processes.
"""

from __future__ import annotations
