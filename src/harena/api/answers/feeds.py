"""Atom feeds (RFC 4287). Guarantees: well-formed XML whatever people are called; entries keep their ids."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote
from xml.etree import ElementTree

from harena.api.answers import views
from harena.arena.db.ladder.matches import MatchRecord
from harena.arena.db.notices import RankChange
from harena.arena.db.records import SubmissionRecord

MEDIA = "application/atom+xml"
NAMESPACE = "http://www.w3.org/2005/Atom"
EPOCH = "1970-01-01T00:00:00Z"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedEntry:
    id: str
    title: str
    link: str
    author: str
    updated: str
    text: str = ""


def result(base: str, of: SubmissionRecord) -> FeedEntry:
    score = "" if of.score is None else f": {of.score:.6g}"
    return FeedEntry(
        id=_urn(of.id),
        title=f"{of.algorithm} v{of.version} of {of.owner} in {of.env_id}{score}",
        link=f"{base}/submission/{of.id}",
        author=of.owner,
        updated=views.time_text(of.updated_at) or EPOCH,
    )


def rank(base: str, of: RankChange) -> FeedEntry:
    before, after = ("outside the best" if one is None else f"rank {one}" for one in (of.before, of.after))
    return FeedEntry(
        id=uuid.uuid5(uuid.NAMESPACE_URL, f"harena:rank:{of.env_id}:{of.id}:{of.created_at}").urn,
        title=f"{of.algorithm} of {of.owner} in {of.env_id}: from {before} to {after}",
        link=f"{base}/env/{quote(of.env_id)}",
        author=of.owner,
        updated=views.time_text(of.created_at) or EPOCH,
    )


def match(base: str, of: MatchRecord, known: Mapping[str, SubmissionRecord]) -> FeedEntry:
    names = [
        f"{found.algorithm} v{found.version} ({found.owner})" if (found := known.get(seat.submission_id)) else "?"
        for seat in of.seats
    ]
    winner = "draw" if of.winner is None else f"{names[of.winner]} won"
    return FeedEntry(
        id=_urn(of.id),
        title=f"Match {of.number} in {of.env_id}: {' against '.join(names)}",
        link=f"{base}/match/{of.id}",
        author="Harena",
        updated=views.time_text(of.finished_at) or EPOCH,
        text=winner,
    )


def document(title: str, address: str, entries: Sequence[FeedEntry]) -> bytes:
    root = ElementTree.Element("feed", {"xmlns": NAMESPACE})
    _add(root, "id", uuid.uuid5(uuid.NAMESPACE_URL, address).urn)
    _add(root, "title", title)
    _add(root, "updated", max((entry.updated for entry in entries), default=EPOCH))
    ElementTree.SubElement(root, "link", {"rel": "self", "href": _clean(address)})
    for entry in entries:
        node = ElementTree.SubElement(root, "entry")
        _add(node, "id", entry.id)
        _add(node, "title", entry.title)
        _add(node, "updated", entry.updated)
        ElementTree.SubElement(node, "link", {"rel": "alternate", "href": _clean(entry.link)})
        _add(ElementTree.SubElement(node, "author"), "name", entry.author)
        if entry.text:
            _add(node, "summary", entry.text)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _add(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, name).text = _clean(text)


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)


def _urn(hexadecimal: str) -> str:
    return uuid.UUID(hexadecimal).urn
