"""Agents: loaded, inspected and validated on the host (`load`, `source`, `validate`, `packages`), and served inside the
box (`harness`, which imports nothing else of Harena).
"""

from __future__ import annotations
