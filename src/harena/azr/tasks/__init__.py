"""Tasks of self-play: their kinds, the programs they are made of, the prompts that ask for them, and the buffer that
keeps them.
"""

from __future__ import annotations
