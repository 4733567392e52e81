"""Match executor: serves matches over gRPC, as defined in proto/executor.proto. `server` starts it."""

from __future__ import annotations
