"""Layers become folders: `unpack` (a layer, whole or not at all), `jail` and `seal` (the confined process, from outside
and from inside), `untar` (its program), `tar` (the parser), `caps` (upper bounds) and `ids` (who owns the files)."""
