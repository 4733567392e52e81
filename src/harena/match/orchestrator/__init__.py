"""What plays a match inside of a Kubernetes Job: `main` runs in the orchestrator's container and is the only part that
knows game, clock and score; `pod_seat` speaks to the agents' containers; `wire` is shared with the executor;
`tools` and `native/seat.c` are what agents' containers start with.

Depends on `harena[match]` only: nothing here speaks to the cluster.
"""

from __future__ import annotations
