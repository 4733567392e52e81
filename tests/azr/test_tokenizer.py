from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from harena.azr.model.tokenizer import ByteTokenizer, HfTokenizer
from harena.errors import SpecError

CODEC = ByteTokenizer()
TEXTS = [
    "",
    "a",
    "\n\n",
    "def f(a):\n    return a + 12\n\n",
    "été 日本 🎈",
    "<end><pad>",
    "\x00\xff\u07ff",
    "10203 0x1F",
    "\ud800 lone",
]


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_comes_back(text: str) -> None:
    assert CODEC.decode(CODEC.encode(text)) == text


def test_random_text_comes_back() -> None:
    rng = random.Random(4)
    pieces = [*CODEC.extra, *"abc019 \n'[](){}:", "é", "語"]
    for _ in range(300):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 40)))
        assert CODEC.decode(CODEC.encode(text)) == text


def test_digits_are_single_tokens() -> None:
    assert len(CODEC.encode("9081726354")) == 10


def test_common_code_is_short() -> None:
    assert len(CODEC.encode("\n    return sorted(x)")) == 4


def test_text_never_becomes_a_special_token() -> None:
    assert not {CODEC.pad, *CODEC.eos} & set(CODEC.encode("<pad><end>" + "".join(map(chr, range(256)))))


def test_broken_utf8_is_shown_not_raised() -> None:
    assert CODEC.decode([CODEC.encode("é")[0]]) == "\ufffd"


def test_a_file_gives_the_same_tokenizer(tmp_path: Path) -> None:
    CODEC.save(tmp_path / "tokenizer.json")
    again = ByteTokenizer.load(tmp_path / "tokenizer.json")
    assert again.extra == CODEC.extra
    assert again.encode("def f(x):") == CODEC.encode("def f(x):")


def test_the_longest_piece_is_taken_and_a_dead_end_given_up() -> None:
    codec = ByteTokenizer(["ab", "abcd", "bc"])
    assert [codec.pieces()[n] for n in codec.encode("abcdabcab")] == ["abcd", "ab", "c", "ab"]


def test_pieces_that_would_hide_digits_or_bytes_are_refused() -> None:
    for pieces in (["10"], ["a"]):
        with pytest.raises(SpecError):
            ByteTokenizer(pieces)


def test_other_files_are_refused() -> None:
    good = json.loads(ByteTokenizer().to_json())
    assert ByteTokenizer.from_json(json.dumps(good)).vocab == ByteTokenizer().vocab
    long, many = ["ab" * 20_000], [chr(0x4E00 + n // 300) + chr(0x4E00 + n % 300) for n in range(70_000)]
    odd = [{"kind": "bpe"}, *(good | {"pieces": pieces} for pieces in (long, many, [1], [None], 7, ["\ud800x"]))]
    for text in ("", "[]", "7", "[" * 100_000, *map(json.dumps, odd)):
        with pytest.raises(SpecError):
            ByteTokenizer.from_json(text)


def test_a_tokenizers_backend_serves_as_codec() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "<|end|>": 3}, merges=[("a", "b")])
    )
    backend.add_special_tokens(["<|end|>"])
    codec = HfTokenizer(backend, eos=[3])
    assert codec.encode("abb") == [2, 1]
    assert codec.pieces() == ["a", "b", "ab", ""]
    assert codec.decode([2, 3]) == "ab"
    assert 3 not in codec.encode("a<|end|>b")
