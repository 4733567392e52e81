"""Tokenizers as the engine sees them, and our own: bytes, single digits and a fixed list of pieces of Python.

Promises: any text comes back as it was; digits are always single tokens; special tokens never come out of text, so a
program cannot end a document. Does not train: the list is fixed, and a checkpoint carries the one it was made with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from harena.errors import SpecError


class TextCodec(Protocol):
    vocab: int
    pad: int
    eos: tuple[int, ...]
    """Tokens that end a completion."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def chat(self, text: str) -> list[int]:
        """What a user says, and the beginning of the model's turn."""
        ...

    def pieces(self) -> list[str]:
        """The text of every token, in order; empty for special ones."""
        ...


SPECIALS = ("<pad>", "<end>")
MAX_PIECES, MAX_PIECE_BYTES = 1 << 16, 64
"""Limits of a file's tokenizer: one pattern is made of all pieces, as deep as the longest is long."""

WORDS = (
    "def",
    "f(",
    "return",
    "for",
    "in",
    "if",
    "else",
    "elif",
    "while",
    "not",
    "and",
    "or",
    "True",
    "False",
    "None",
    "lambda",
    "import",
    "from",
    "class",
    "range(",
    "len(",
    "sorted(",
    "sum(",
    "max(",
    "min(",
    "abs(",
    "str(",
    "int(",
    "bool(",
    "set(",
    "dict(",
    "list(",
    "tuple(",
    "zip(",
    "map(",
    "filter(",
    "any(",
    "all(",
    "divmod(",
    "round(",
    "enumerate(",
    "reversed(",
    ".append(",
    ".upper()",
    ".lower()",
    ".strip()",
    ".title()",
    ".split(",
    ".join(",
    ".replace(",
    ".count(",
    ".find(",
    ".index(",
    ".items()",
    ".keys()",
    ".values()",
    ".get(",
    ".startswith(",
    ".endswith(",
    ".isdigit()",
    ".isalpha()",
    ".swapcase()",
    ".capitalize()",
    ".fromkeys(",
    ".extend(",
    ".pop(",
    ".insert(",
    ".copy()",
    ".sort(",
    ".update(",
    ".add(",
    "key=len",
    "reverse=True",
    "default=",
    "==",
    "!=",
    "<=",
    ">=",
    "+=",
    "-=",
    "*=",
    "//",
    "**",
    "[::-1]",
    "[::2]",
    "[1:]",
    "[:-1]",
    "[0]",
    "[-1]",
    "program",
    "input",
    "output",
    "message",
    "answer",
    "task",
    "propose",
    "solve",
    "deduction",
    "abduction",
    "induction",
    "predict",
    "write",
    "function",
    "given",
    "find",
    "then",
    "value",
    "number",
    "text",
    "word",
    "items",
    "first",
    "last",
    "reverse",
    "double",
    "upper",
    "lower",
    "count",
    "length",
)

SPACED = (
    " = ",
    " + ",
    " - ",
    " * ",
    " // ",
    " % ",
    " == ",
    " != ",
    " < ",
    " > ",
    " <= ",
    " >= ",
    " += ",
    " -= ",
    " *= ",
    ", ",
    ": ",
    " in ",
    " for ",
    " if ",
    " else ",
    " not ",
    " and ",
    " or ",
    " ** ",
    "return ",
    "def f(",
    "):\n",
    "    ",
    "        ",
    "\n    ",
    "\n        ",
    "\n            ",
    "\n    return ",
    "\n        return ",
    ":\n",
    "if ",
    "for ",
    "else:",
    "else:\n",
    "\n\n",
    "')",
    "', '",
    "['",
    "']",
    "[]",
    "''",
    "()",
    "{}",
    "((",
    "))",
    "([",
    "])",
    "{'",
    "': ",
    ", '",
    "], [",
    "), (",
    ">>> ",
    "assert f(",
    ") == ",
    "# ",
    "```",
    "```python\n",
    "```\n",
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
)


class ByteTokenizer:
    """Specials, then the 256 bytes, then pieces; the longest piece that fits is taken, from left to right."""

    def __init__(self, pieces: Sequence[str] | None = None) -> None:
        chosen = list(dict.fromkeys((*WORDS, *SPACED) if pieces is None else pieces))
        if any(len(piece.encode()) < 2 for piece in chosen):
            raise SpecError("a piece must be longer than one byte: bytes are tokens already")
        if any(sum(c.isdigit() for c in piece) > 1 for piece in chosen):
            raise SpecError("a piece may hold one digit at most: numbers are spelled digit by digit")
        self.extra = tuple(chosen)
        first = len(SPECIALS)
        self._bytes = [b""] * first + [bytes([b]) for b in range(256)] + [piece.encode() for piece in chosen]
        self._ids = {raw.decode("latin-1"): n for n, raw in enumerate(self._bytes) if n >= first}
        # Text is matched as Latin-1 of its UTF-8 bytes, so one regular expression serves all bytes.
        self._pattern = re.compile(_trie([p.encode().decode("latin-1") for p in chosen]), re.DOTALL)
        self.vocab = len(self._bytes)
        self.pad = 0
        self.eos: tuple[int, ...] = (1,)

    def encode(self, text: str) -> list[int]:
        ids = self._ids
        raw = text.encode("utf-8", "surrogatepass").decode("latin-1")
        return [ids[piece] for piece in self._pattern.findall(raw)]

    def chat(self, text: str) -> list[int]:
        """The small model knows no turns: the text as it is."""
        return self.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        raw = b"".join([self._bytes[n] for n in ids])
        try:
            return raw.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return raw.decode("utf-8", "replace")

    def pieces(self) -> list[str]:
        return [raw.decode("utf-8", "replace") for raw in self._bytes]

    def to_json(self) -> str:
        return json.dumps({"kind": "bytes", "specials": SPECIALS, "pieces": self.extra})

    @classmethod
    def from_json(cls, text: str) -> ByteTokenizer:
        try:
            raw: Any = json.loads(text)
            known = (raw["kind"], tuple(raw["specials"])) == ("bytes", SPECIALS)
            pieces = cast("list[Any]", raw["pieces"])
            sizes = [len(piece.encode()) for piece in pieces]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise SpecError("not a tokenizer file of ours") from None
        if not known or len(sizes) > MAX_PIECES or max(sizes, default=0) > MAX_PIECE_BYTES:
            raise SpecError("not a tokenizer file of ours, or one with too many or too long pieces")
        return cls(pieces)

    def save(self, path: Path) -> None:
        path.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> ByteTokenizer:
        return cls.from_json(path.read_text(encoding="utf-8"))


def _trie(pieces: Sequence[str]) -> str:
    """One pattern that takes the longest piece, or else any one character, without trying pieces in turn."""
    root: dict[str, Any] = {}
    for piece in pieces:
        node = root
        for letter in piece:
            node = node.setdefault(letter, {})
        node[""] = {}
    branches = [re.escape(letter) + _branch(node) for letter, node in root.items()]
    return "|".join([*branches, "."])


def _branch(node: dict[str, Any]) -> str:
    inner = [re.escape(letter) + _branch(child) for letter, child in node.items() if letter]
    if not inner:
        return ""
    return f"(?:{'|'.join(inner)})" + ("?" if "" in node else "")


class HfTokenizer:
    """A tokenizer.json through the `tokenizers` package; `eos` are the ids that end a completion."""

    def __init__(self, backend: Any, *, eos: Sequence[int], pad: int | None = None) -> None:
        self._backend = backend
        backend.encode_special_tokens = True  # what models write must not become a control token when it is shown again
        self.vocab = int(backend.get_vocab_size())
        self.eos = tuple(eos)
        self.pad = self.eos[0] if pad is None else pad
        self._texts: list[str] | None = None

    def encode(self, text: str) -> list[int]:
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def chat(self, text: str) -> list[int]:
        """ChatML (Qwen, SmolLM2) where its tokens are there, else the text with a word for each turn. The text itself
        never becomes a control token."""
        start, end = (self._backend.token_to_id(token) for token in ("<|im_start|>", "<|im_end|>"))
        if start is None or end is None:
            return self.encode(f"User: {text}\n\nAssistant:")
        turns = (start, *self.encode(f"user\n{text}"), end, *self.encode("\n"), start, *self.encode("assistant\n"))
        return list(turns)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._backend.decode(list(ids), skip_special_tokens=True))

    def pieces(self) -> list[str]:
        if self._texts is None:
            texts = self._backend.decode_batch([[n] for n in range(self.vocab)], skip_special_tokens=True)
            self._texts = cast(list[str], texts)
        return self._texts
