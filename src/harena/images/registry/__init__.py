"""Registries: `client` (the HTTP API), `transport` (one exchange with a checked address), `credentials` (Docker's
configuration) and `download` (blobs, resumed and verified)."""
