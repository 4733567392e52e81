"""A box without namespaces (docs/isolation.md).

custody.py    its keeper: starts the loop, and ends and removes what is left of the box
loop.py       takes requests and reports how jobs ended
job.py        one job: its init, its descriptors, its limits
landlock.py   what a job may reach
processes.py  ends what no pid namespace holds together
folders.py    folders that a guest has filled
places.py     where the paths of the API are
template.py   the warm Python that programs are forked from, some of them ahead
"""

from __future__ import annotations
