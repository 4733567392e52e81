"""The match executor: matches over gRPC, by the contract of proto/executor.proto. `server` starts it."""

from __future__ import annotations
