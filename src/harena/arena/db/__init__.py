"""The database: its tables (`models`), rows as values (`records`), the connection (`database`), one repository for each
thing that is kept (`submissions`, `matches`, `keys`, ...), the file store (`files`), and `store`, which opens the
database and has all repositories.
"""

from __future__ import annotations
