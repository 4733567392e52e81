"""The paths of the API, by subject. `legacy` keeps the older ones word for word."""

from __future__ import annotations
