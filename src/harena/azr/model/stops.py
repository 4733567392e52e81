"""When a completion is over: end tokens and stop texts, as tables over the vocabulary and as a cut of token lists.

Promises: a completion is cut after the first token with which its text holds a stop, whatever tokens the stop is
spread over; `closing_tokens` misses no token that can complete one. Knows no device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harena.azr.model.tokenizer import TextCodec


class Stops:
    def __init__(self, codec: TextCodec, texts: Sequence[str], *, vocab: int) -> None:
        self._codec = codec
        self.texts = tuple(text for text in texts if text)
        pieces = codec.pieces()
        self.ending_tokens = np.zeros(vocab, dtype=bool)
        """Tokens that end a completion by themselves: end tokens, and those that hold a whole stop."""
        self.closing_tokens = np.zeros(vocab, dtype=bool)
        """Tokens that can complete a stop: it ends in them, whatever of it came before."""
        self._eos = frozenset(codec.eos)
        self.ending_tokens[list(codec.eos)] = True
        rests = tuple({text[start:] for text in self.texts for start in range(1, len(text))})
        for number, piece in enumerate(pieces[:vocab]):
            # Part of a character: what it will be is not known, so it is looked at.
            holds = any(text in piece for text in self.texts)
            if holds or "\ufffd" in piece or piece.startswith(rests):
                self.closing_tokens[number] = bool(self.texts)
                self.ending_tokens[number] |= holds
        self.spans_tokens = bool(self.texts)
        """Whether a stop could be spread over several tokens, so that texts have to be looked at."""

    def cut(self, ids: Sequence[int]) -> tuple[int, bool]:
        """How many of `ids` belong to the completion, and whether it has ended there."""
        length = next((n + 1 for n, token in enumerate(ids) if token in self._eos), len(ids))
        ended = length > 0 and ids[length - 1] in self._eos
        if not self._holds_stop(ids[:length]):
            return length, ended
        if not self._holds_stop(ids[: length - 1]):
            return length, True
        low, high = 0, length - 1
        while low < high:  # holding a stop is monotone in the length: the smallest one is found by halving
            middle = (low + high) // 2
            low, high = (low, middle) if self._holds_stop(ids[:middle]) else (middle + 1, high)
        return low, True

    def text(self, ids: Sequence[int]) -> str:
        """What the tokens say, without end tokens and up to the first stop."""
        text = self._codec.decode([token for token in ids if token not in self._eos])
        found = [at for at in (text.find(stop) for stop in self.texts) if at >= 0]
        return text[: min(found)] if found else text

    def _holds_stop(self, ids: Sequence[int]) -> bool:
        if not self.texts:
            return False
        text = self._codec.decode(ids)
        return any(stop in text for stop in self.texts)
