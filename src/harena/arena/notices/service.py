"""Turns events into notices for owners, and delivers them.

Guarantees: each result and each change of rank is noted once for each webhook and mail address of the owner and, of a
team, of its members; nobody is told of a private environment that they are no guest of. A delivery is tried again for
about a day. Runs in every process that serves the API; the database decides which one does what.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from harena.arena.db.database import Changes, log_failure, touches
from harena.arena.db.events import EventNotice
from harena.arena.db.models import BoardKind, EnvironmentKind, HookKind, NotFound, State
from harena.arena.db.notices import DeliveryRecord, HookRecord, RankChange
from harena.arena.db.records import Filter, Sort, SubmissionRecord
from harena.arena.db.store import Store
from harena.arena.notices.transport import MailServer, Undelivered, Webhooks, check_mail, encoded, signed
from harena.arena.settings import Settings
from harena.errors import SpecError

PAGE = 500
LOOK_S = 1.0
RANKS_EVERY_S = 10.0
"""A ladder's board changes all the time: its ranks are compared this often at most."""
BEST = 50
"""Changes among the first so many are told."""
COMPARED = 200
LEASE_S = 60.0
RETRY_S = (10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 18 * 3600.0)
PRUNE_S = 3600.0
OVER = frozenset({State.RANKED.value, State.FAILED.value, State.REJECTED.value})
_log = logging.getLogger("harena.arena")


class Notices:
    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._webhooks = Webhooks(settings.webhooks)
        self._mail = MailServer.parse(settings.smtp_url) if settings.smtp_url else None
        self._sender = settings.mail_from
        self._bell = threading.Event()
        self._ending = False
        self._threads: list[threading.Thread] = []
        self._boards: dict[str, float] = {}
        """Boards that have changed, and when they may be compared."""
        self._pruned_at = 0.0
        self._unlisten = lambda: None

    def start(self) -> None:
        self._unlisten = self._store.database.on_commit(self._committed)
        for name, run in (("notices", self._watch), ("deliveries", self._deliver)):
            thread = threading.Thread(target=run, name=f"harena-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self._unlisten()
        self._ending = True
        self._bell.set()
        for thread in self._threads:
            thread.join()

    # ---- hooks ----

    def add(self, owner: str, kind: HookKind, target: str) -> HookRecord:
        """Raises SpecError where the host does not allow it, Conflict when there are too many."""
        if kind is HookKind.WEBHOOK:
            self._webhooks.check(target)
        else:
            check_mail(target)
            if self._mail is None:
                raise SpecError("this arena sends no mail: its host sets HARENA_SMTP_URL")
        with self._store.begin():
            made = self._store.notices.add_hook(owner, kind, target)
            if kind is HookKind.MAIL:
                self._store.notices.add_delivery(made.id, "confirm", {"owner": owner})
        return made

    # ---- from events to deliveries ----

    def look(self) -> int:
        """Note what has happened since the last look. Returns how many events there were."""
        with self._store.begin():
            cursor = self._store.notices.cursor()
            if cursor is None:
                self._store.notices.advance(self._store.events.last())
                return 0
            found = self._store.events.after(cursor, limit=PAGE)
            for event in found:
                self._note(event)
            if found:
                self._store.notices.advance(found[-1].number)
        return len(found)

    def compare_ranks(self, env_id: str) -> list[RankChange]:
        """Note which of the best have changed their rank."""
        with self._store.begin():
            changes = self._store.notices.replace_ranks(env_id, self._ranks(env_id), BEST)
            for change in changes:
                body = {
                    "env_id": env_id,
                    "owner": change.owner,
                    "algorithm": change.algorithm,
                    "rank_before": change.before,
                    "rank": change.after,
                }
                self._tell(change.owner, env_id, "rank", body)
        return changes

    def _note(self, event: EventNotice) -> None:
        kind, _, name = event.topic.partition(":")
        if kind == "board":
            self._boards.setdefault(name, time.monotonic() + RANKS_EVERY_S)
        elif kind == "submission" and event.kind == "state" and event.body.get("state") in OVER:
            try:
                found = self._store.submissions.get(name)
            except NotFound:
                return
            self._tell(found.owner, found.env_id, "result", _result(found, event.body))

    def _tell(self, owner: str, env_id: str, event: str, body: Mapping[str, Any]) -> None:
        people = {owner}
        if self._store.teams.exists(owner):
            people |= {one.owner for one in self._store.teams.members(owner) if one.joined_at is not None}
        for hook in self._store.notices.listening(people):
            names = {hook.owner, *self._store.teams.of(hook.owner)}
            if env_id not in self._store.guests.hidden_from(names):
                self._store.notices.add_delivery(hook.id, event, body)

    def _ranks(self, env_id: str) -> dict[tuple[str, str], int]:
        try:
            environment = self._store.environments.get(env_id)
        except NotFound:
            return {}
        season = self._store.seasons.live(env_id)
        if environment.kind is EnvironmentKind.LADDER:
            if season is None:
                return {}
            lines = self._store.standings.where(
                env_id, BoardKind.LADDER, season.id, Filter(), sort=Sort.SCORE_DESC, limit=COMPARED, offset=0
            )
            return {(line.owner, line.algorithm): line.rank for line in lines}
        found: dict[tuple[str, str], int] = {}
        rank, score = 0, None
        for place, entry in enumerate(self._store.boards.top(env_id, limit=COMPARED), 1):
            rank, score = (rank if entry.score == score else place), entry.score
            found[entry.owner, entry.algorithm] = rank
        return found

    # ---- threads ----

    def _committed(self, changes: Changes) -> None:
        if touches(changes, "events") or touches(changes, "deliveries"):
            self._bell.set()

    def _watch(self) -> None:
        while not self._ending:
            try:
                if self._store.notices.cursor() != self._store.events.last():
                    while self.look() == PAGE:
                        pass
                now = time.monotonic()
                for env_id in [name for name, at in self._boards.items() if at <= now]:
                    del self._boards[env_id]
                    self.compare_ranks(env_id)
            except Exception as error:
                log_failure(_log, "news could not be noted; it is tried again", error)
            self._pause()

    def _deliver(self) -> None:
        while not self._ending:
            try:
                if time.monotonic() - self._pruned_at > PRUNE_S:
                    self._pruned_at = time.monotonic()
                    self._store.notices.prune()
                while not self._ending and self.deliver_one():
                    pass
            except Exception as error:
                log_failure(_log, "a notice could not be delivered; it is tried again", error)
            self._pause()

    def _pause(self) -> None:
        """A second at most between looks, and at least a little, so that a burst of events is one look."""
        self._bell.wait(LOOK_S)
        if not self._ending:
            time.sleep(0.05)
            self._bell.clear()

    def deliver_one(self) -> bool:
        """Send what is due next. Returns whether something was due."""
        delivery = self._store.notices.claim(LEASE_S)
        if delivery is None:
            return False
        try:
            hook = self._store.notices.hook(delivery.hook_id)
        except NotFound:  # removed just now, and its deliveries with it
            return True
        try:
            self._send(hook, delivery)
        except Undelivered as error:
            over = error.final or delivery.attempts > len(RETRY_S)
            again_in_s = None if over else RETRY_S[delivery.attempts - 1]
            self._store.notices.failed(delivery, str(error), again_in_s)
        else:
            self._store.notices.delivered(delivery)
        return True

    def _send(self, hook: HookRecord, delivery: DeliveryRecord) -> None:
        if hook.kind is HookKind.MAIL:
            if self._mail is None:
                raise Undelivered("this arena sends no mail any more")
            self._mail.send(self._sender, hook.target, *mail_text(hook, delivery))
            return
        body = encoded({"id": delivery.id, "event": delivery.event, "at": delivery.created_at, **delivery.body})
        self._webhooks.send(hook.target, body, signed(hook.secret, delivery.event, delivery.id, body))


def _result(of: SubmissionRecord, told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "submission_id": of.id,
        "owner": of.owner,
        "algorithm": of.algorithm,
        "version": of.version,
        "env_id": of.env_id,
        "state": told["state"],
        "score": told.get("score"),
    }


def mail_text(hook: HookRecord, delivery: DeliveryRecord) -> Sequence[str]:
    """Subject and text."""
    body = delivery.body
    if delivery.event == "confirm":
        return (
            "Harena: confirm this address",
            f"{body['owner']} wants to get news of a Harena arena at this address. If that is you, type this code on "
            f"the account page:\n\n    {hook.secret}\n\nIf it is not you, do nothing: you will get no other mail.\n",
        )
    agent = f"{body['algorithm']} of {body['owner']} in {body['env_id']}"
    if delivery.event == "rank":
        ranks = " to ".join("outside the best" if rank is None else f"rank {rank}" for rank in _ranks_of(body))
        return f"Harena: {agent}", f"{agent} went from {ranks}.\n"
    score = "" if body["score"] is None else f" with a score of {body['score']:.6g}"
    return f"Harena: {agent} is {body['state']}", f"{agent}, version {body['version']}, is {body['state']}{score}.\n"


def _ranks_of(body: Mapping[str, Any]) -> tuple[int | None, int | None]:
    return body["rank_before"], body["rank"]
