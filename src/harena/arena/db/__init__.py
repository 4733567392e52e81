"""The database, with all SQL of the arena: its tables (`models`), rows as values (`records`), the connection
(`database`), one repository for each thing that is kept (`accounts`, `results`, `ladder`, `seasons`, `jobs`, ...), the
file store (`files`), and `store`, which opens the database and has all repositories.
"""

from __future__ import annotations
