"""Tells other processes by Redis's publish and subscribe what a transaction has changed.

Guarantees: a commit never waits for Redis; a message only says what to read again, and one that is lost, doubled, late
or forged costs a look at the database and nothing else. After a break everything is read again. On PostgreSQL the
database's own notices go on beside it, so nobody depends on Redis for being told.
"""

from __future__ import annotations

import contextlib
import queue
import re
import threading
from typing import Any

from harena.arena.db.database import Changes, Database
from harena.arena.db.server.presence import ANYTHING, new_token
from harena.arena.redis.link import AGAIN_S, RedisLink

MESSAGE = re.compile(r"([0-9a-f]{16}) ((?:events|jobs:[a-z_]{1,32}|\*)(?:\n(?:events|jobs:[a-z_]{1,32}|\*)){0,63})")
MAX_MESSAGE = 4096
MAX_WAITING = 1000
LISTEN_S = 0.5
SILENCE_S = 5.0
"""How soon a connection that says nothing is asked whether it still is one."""


class RedisBell:
    def __init__(self, link: RedisLink, database: Database) -> None:
        self._link = link
        self._database = database
        self._token = new_token()
        self._channel = f"{link.prefix}:changes"
        self._outbox: queue.SimpleQueue[Changes | None] = queue.SimpleQueue()
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._send, name="harena-redis-send", daemon=True),
            threading.Thread(target=self._listen, name="harena-redis-listen", daemon=True),
        ]
        self.listening = threading.Event()
        """Set while other processes' messages are heard."""

    def start(self) -> None:
        self._database.relay = self._committed
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Idempotent."""
        self._database.relay = None
        self._ending.set()
        self._outbox.put(None)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _committed(self, changes: Changes) -> None:
        if self._link.usable and self._outbox.qsize() < MAX_WAITING:
            self._outbox.put(changes)

    def _send(self) -> None:
        while (changes := self._outbox.get()) is not None:
            words = f"{self._token} " + "\n".join(sorted(changes))
            self._link.use(lambda client, words=words: client.publish(self._channel, words))

    def _listen(self) -> None:
        while not self._ending.is_set():
            try:
                self._hear()
            except Exception as error:
                self._link.lost(error)
            self.listening.clear()
            self._ending.wait(AGAIN_S)

    def _hear(self) -> None:
        with contextlib.closing(self._link.subscriber(SILENCE_S)) as subscriber:
            subscriber.subscribe(self._channel)
            while not self._ending.is_set():
                message: Any = subscriber.get_message(timeout=LISTEN_S)
                if message is None:
                    continue
                if message["type"] == "subscribe":  # also after redis-py has connected again by itself
                    self.listening.set()
                    self._database.heard(frozenset({ANYTHING}))
                elif message["type"] == "message":
                    changes = parse(message["data"], self._token)
                    if changes:
                        self._database.heard(changes)


def parse(data: Any, own_token: str) -> Changes:
    """Changes that a message names; none if it is this process's own, or is not of our form."""
    if not isinstance(data, bytes) or len(data) > MAX_MESSAGE:
        return frozenset()
    found = MESSAGE.fullmatch(data.decode("ascii", "replace"))
    if found is None or found[1] == own_token:
        return frozenset()
    return frozenset(found[2].split("\n"))
