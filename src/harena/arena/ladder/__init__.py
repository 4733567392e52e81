"""Ladders and tournaments: who meets whom, what the results are worth, who stands where.

`matchmaker` and `pairing` choose, `matches` has them played, `ratings`, `fold` and `standings` count;
`roster` says who takes part; `challenges` and `tournaments` are matches that somebody asked for; `rebuild` counts anew.
"""

from __future__ import annotations
