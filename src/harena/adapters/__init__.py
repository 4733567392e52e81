"""Bridges from frameworks of others to boxes and matches. Each module needs its framework and is imported only when it
is used; docs/adapters.md lists them."""
