"""What tests share: servers, engines, browsers, agents, and builds of the native part with an edit."""

from __future__ import annotations
