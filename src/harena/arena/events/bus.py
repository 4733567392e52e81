"""News for this process: who waits for a topic is woken when the events table has more of it. The table is the truth;
the hub only says that there is more.

Guarantees: every event that was committed after `start` is handed on once and in order to each listener and to each
subscription that keeps up; one that does not gets a "reset" and reads the table again. Events are seen at once, also
those of other processes on PostgreSQL, where a commit notifies all; whatever gets lost is found within POLL_S.
Frames of running matches are in memory only: a restart forgets them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from harena.arena.db.database import Changes, log_failure, touches
from harena.arena.db.events import EventNotice
from harena.arena.db.records import MAX_PAGE
from harena.arena.db.store import Store

POLL_S = 0.25
MAX_WAITING = 1000
"""Notices that a subscription keeps for a slow reader."""
MAX_TOPICS = 50_000
"""Whose versions are remembered one by one."""
MAX_FRAMES = 5000
"""How many frames of a match are kept, the latest ones."""
MAX_LIVE = 64
"""Matches with frames: the latest are kept."""
RESET = "reset"
_log = logging.getLogger("harena.arena")


class Subscription:
    """Notices of some topics, for one reader. Close it."""

    def __init__(self, topics: frozenset[str], clock: Callable[[], float], closed: Callable[[Subscription], None]):
        self.topics = topics
        self._clock = clock
        self._closed = closed
        self._waiting: deque[EventNotice] = deque()
        self._changed = threading.Condition()
        self._open = True

    def get(self, timeout_s: float) -> list[EventNotice]:
        """All that came since the last call; waits for the first. Empty: nothing came in time, or it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open, timeout_s)
            came = list(self._waiting)
            self._waiting.clear()
            return came

    def put(self, notice: EventNotice) -> None:
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.clear()
                notice = EventNotice(number=notice.number, topic="", kind=RESET, body={}, created_at=self._clock())
            self._waiting.append(notice)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._open = False
            self._changed.notify_all()
        self._closed(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


@dataclass(slots=True)
class _Frames:
    latest: deque[dict[str, Any]] = field(default_factory=lambda: deque[dict[str, Any]](maxlen=MAX_FRAMES))
    count: int = 0


class Hub:
    """Safe to use from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None
        self._seen = self._floor = store.events.last()
        self._versions: OrderedDict[str, int] = OrderedDict()
        self._subscriptions: dict[str, set[Subscription]] = {}
        self._listeners: tuple[Callable[[EventNotice], object], ...] = ()
        self._frames: OrderedDict[str, _Frames] = OrderedDict()
        self._stop_listening: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._stop_listening = self._store.database.on_commit(self._committed)
        self._thread = threading.Thread(target=self._run, name="harena-hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends every subscription. Again does nothing."""
        self._stop_listening()
        self._ending = True
        self._bell.set()
        if self._thread is not None:
            self._thread.join()
        with self._lock:
            still_open = {one for group in self._subscriptions.values() for one in group}
        for subscription in still_open:
            subscription.close()

    # ---- who listens ----

    def subscribe(self, topics: Collection[str]) -> Subscription:
        subscription = Subscription(frozenset(topics), self._store.clock, self._forget)
        with self._lock:
            for topic in subscription.topics:
                self._subscriptions.setdefault(topic, set()).add(subscription)
        if self._ending:
            subscription.close()
        return subscription

    def add_listener(self, callback: Callable[[EventNotice], object]) -> Callable[[], None]:
        """Call `callback` for every notice of every topic, in the hub's thread, so it must be quick. Returns a
        function that removes it."""
        with self._lock:
            self._listeners += (callback,)

        def remove() -> None:
            with self._lock:
                self._listeners = tuple(one for one in self._listeners if one is not callback)

        return remove

    def version(self, topic: str) -> int:
        """The number of the topic's last event, or a later number that changes only when the topic may have. Ask
        before reading what the topic is about: what is read is then at least as new."""
        with self._lock:
            return self._versions.get(topic, self._floor)

    def _forget(self, subscription: Subscription) -> None:
        with self._lock:
            for topic in subscription.topics:
                group = self._subscriptions.get(topic, set())
                group.discard(subscription)
                if not group:
                    self._subscriptions.pop(topic, None)

    # ---- running matches ----

    def frame(self, match_id: str, event: dict[str, Any]) -> None:
        """What a running match told. Subscriptions to "frames:MATCH_ID" get it too, numbered from 1."""
        topic = frames_topic(match_id)
        with self._lock:
            kept = self._frames.get(match_id)
            if kept is None:
                kept = self._frames[match_id] = _Frames()
                if len(self._frames) > MAX_LIVE:
                    self._frames.popitem(last=False)
            kept.latest.append(event)
            kept.count += 1
            readers = list(self._subscriptions.get(topic, ()))
            notice = EventNotice(
                number=kept.count, topic=topic, kind="frame", body=event, created_at=self._store.clock()
            )
        for reader in readers:
            reader.put(notice)

    def frames(self, match_id: str) -> list[dict[str, Any]]:
        """So far, oldest first. Subscribe first, then ask: nothing is missed."""
        with self._lock:
            kept = self._frames.get(match_id)
            return list(kept.latest) if kept is not None else []

    def end_frames(self, match_id: str) -> None:
        """The match is over and in the database."""
        topic = frames_topic(match_id)
        with self._lock:
            self._frames.pop(match_id, None)
            readers = list(self._subscriptions.get(topic, ()))
            notice = EventNotice(number=0, topic=topic, kind="end", body={}, created_at=self._store.clock())
        for reader in readers:
            reader.put(notice)

    # ---- the thread ----

    def _committed(self, changes: Changes) -> None:
        if touches(changes, "events"):
            self._bell.set()

    def _run(self) -> None:
        while not self._ending:
            self._bell.wait(POLL_S)
            self._bell.clear()
            try:
                while self._hand_on():
                    pass
            except Exception as error:
                log_failure(_log, "the hub could not read events and will try again", error)
                time.sleep(POLL_S)

    def _hand_on(self) -> bool:
        """Whether there may be more."""
        notices = self._store.events.after(self._seen, limit=MAX_PAGE)
        for notice in notices:
            with self._lock:
                self._seen = notice.number
                self._remember(notice)
                readers, listeners = list(self._subscriptions.get(notice.topic, ())), self._listeners
            for reader in readers:
                reader.put(notice)
            for listener in listeners:
                try:
                    listener(notice)
                except Exception:
                    _log.exception("a listener of the hub failed")
        return len(notices) == MAX_PAGE

    def _remember(self, notice: EventNotice) -> None:
        self._versions[notice.topic] = notice.number
        self._versions.move_to_end(notice.topic)
        if len(self._versions) > MAX_TOPICS:
            _, self._floor = self._versions.popitem(last=False)


def frames_topic(match_id: str) -> str:
    return f"frames:{match_id}"
