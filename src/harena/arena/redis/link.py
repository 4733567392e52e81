"""Connection to the Redis that REDIS_URL names.

Guarantees: a Redis that is away, hangs or answers nonsense never fails a caller, who gets None and asks the database;
after a failure nobody waits for it again within AGAIN_S; when it is back, it is used again. Keys begin with a prefix
that follows from the arena's secret, so arenas that share a Redis do not meet; they contain no addresses or names.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from harena.errors import BackendUnavailable, SpecError

SCHEMES = ("redis://", "rediss://", "unix://")
TIMEOUT_S = 0.5
"""The database answers sooner than a Redis that takes longer."""
AGAIN_S = 1.0
REFUSED_S = 60.0
"""How often a refusal is logged."""
MAX_CONNECTIONS = 64
T = TypeVar("T")
_log = logging.getLogger("harena.redis")


class RedisLink:
    """Safe to use from any thread."""

    def __init__(self, url: str, secret: bytes) -> None:
        """Connects to nothing yet. Raises SpecError, BackendUnavailable."""
        if not url.startswith(SCHEMES):
            raise SpecError("REDIS_URL is of the form redis://…, rediss://… or unix://…")
        try:
            self._redis: Any = importlib.import_module("redis")
        except ImportError as error:
            raise BackendUnavailable("REDIS_URL needs redis-py: pip install 'harena[redis]'") from error
        self._url = url
        self._secret = secret
        self.prefix = f"harena:{self.digest('prefix')[:16]}"
        self._away_until = 0.0
        self._away = False
        self._refused_at = -REFUSED_S
        self._lock = threading.Lock()
        try:
            self._client = self.new_client()
        except ValueError as error:
            raise SpecError(f"REDIS_URL: {error}") from None

    def new_client(self, *, loop: bool = False, **more: Any) -> Any:
        """Make another client of this Redis; with `loop`, one for asyncio, which belongs to the loop it is used in."""
        module = importlib.import_module("redis.asyncio" if loop else "redis")
        retry = importlib.import_module("redis.asyncio.retry" if loop else "redis.retry")
        once = retry.Retry(importlib.import_module("redis.backoff").NoBackoff(), 0)
        options: dict[str, Any] = {
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "retry": once,
            "max_connections": MAX_CONNECTIONS,
            "protocol": 2,
        }
        return module.Redis.from_url(self._url, **options | more)

    def digest(self, *parts: str) -> str:
        """Name of a key's subject, which nobody can guess or read without the arena's secret."""
        return hmac.new(self._secret, "\0".join(("harena redis", *parts)).encode(), hashlib.sha256).hexdigest()[:32]

    def use(self, what: Callable[[Any], T]) -> T | None:
        """Return what a call with the client returns; None while Redis cannot be used."""
        if not self.usable:
            return None
        try:
            found = what(self._client)
        except (self._redis.RedisError, OSError, ValueError) as error:
            self.lost(error)
            return None
        self.found()
        return found

    def script(self, text: str) -> Callable[[Sequence[str], Sequence[Any]], Any]:
        """Return a function that runs a Lua script with keys and arguments, and returns None without Redis."""
        registered = self._client.register_script(text)
        return lambda keys, args: self.use(lambda _: registered(keys=list(keys), args=list(args)))

    def subscriber(self, silence_s: float) -> Any:
        """Open a subscription on a connection of its own, which is checked after `silence_s` without a message."""
        client = self.new_client(socket_timeout=silence_s, health_check_interval=silence_s)
        return client.pubsub()

    @property
    def usable(self) -> bool:
        return time.monotonic() >= self._away_until

    def lost(self, error: Exception) -> None:
        """Note a failure: nobody asks again for a moment. An answer that is an error is no reason to stay away."""
        if isinstance(error, self._redis.ResponseError) and not isinstance(error, self._redis.ConnectionError):
            if time.monotonic() - self._refused_at > REFUSED_S:
                self._refused_at = time.monotonic()
                _log.warning("Redis refused a request: %s", str(error)[:200])
            return
        with self._lock:
            self._away_until = time.monotonic() + AGAIN_S
            first, self._away = not self._away, True
        if first:
            _log.warning("Redis cannot be used; the database answers: %s", str(error)[:200])

    def found(self) -> None:
        if self._away:
            with self._lock:
                back, self._away = self._away, False
            if back:
                _log.warning("Redis is back")

    def close(self) -> None:
        self._client.close()
