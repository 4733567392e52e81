"""Backends, which create boxes. One package per backend; `harena.sandbox` looks them up by name."""
