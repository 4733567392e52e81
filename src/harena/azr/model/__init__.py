"""The language model and everything that makes it fast: `decoder` is the model, `decode` and `seats` sample from it,
`weights`, `gguf` and `tokenizer` load it, `pretrain` makes the small one.
"""

from __future__ import annotations
