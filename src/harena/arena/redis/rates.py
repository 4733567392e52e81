"""Rate limits that all replicas share: the generic cell rate algorithm, one number in Redis for each address.

Guarantees: without Redis nothing is refused here (each replica's own buckets still hold); no request waits for Redis
longer than a moment, and after a failure none does for a while; addresses are stored as digests only; a value that is
not ours counts as none, and no wait is longer than the rate's own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from harena.arena.redis.link import RedisLink

TIMEOUT_S = 0.1
TAKE = """
local time = redis.call('TIME')
local now, gap = time[1] * 1000000 + time[2], tonumber(ARGV[1])
local span = gap * ARGV[2]
local raw, full = redis.pcall('GET', KEYS[1]), now
if type(raw) == 'table' then redis.call('DEL', KEYS[1])
elseif raw then full = tonumber(raw) or now end
if full ~= full or full < now then full = now end
if full > now + span then full = now + span end
local wait = full + gap - now - span
if wait > 0 then return math.ceil(wait) end
redis.call('SET', KEYS[1], string.format('%.0f', full + gap), 'PX', math.ceil((full + gap - now) / 1000) + 1)
return 0
"""


class SharedRates:
    """For the event loop that uses it first."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._take: Any = None

    async def take(self, kind: str, address: str, *, per_s: float, burst: float) -> float:
        """0.0: go on. Otherwise the seconds until the next request of this address is taken, by any replica."""
        if not self._link.usable:
            return 0.0
        key = f"{self._link.prefix}:rate:{self._link.digest(kind, address)}"
        try:
            async with asyncio.timeout(2 * TIMEOUT_S):
                wait_us = await self._script()(keys=[key], args=[1e6 / per_s, burst])
        except Exception as error:  # redis-py raises many kinds, and a limit must never fail a request
            self._link.lost(error)
            return 0.0
        self._link.found()
        if not isinstance(wait_us, int) or wait_us < 0:
            return 0.0
        return min(wait_us / 1e6, 1.0 / per_s)

    def _script(self) -> Any:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._client = self._link.new_client(loop=True, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
            self._take = self._client.register_script(TAKE)
            self._loop = loop
        return self._take

    async def close(self) -> None:
        """Idempotent."""
        client, self._client, self._loop = self._client, None, None
        if client is not None:
            with contextlib.suppress(Exception):
                await client.aclose()
