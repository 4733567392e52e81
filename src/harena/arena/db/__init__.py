"""The database: its tables (`models`), rows as values (`records`), the connection (`database`), keys (`accounts`),
what is kept in files (`files`), and one object that has it all (`store`).
"""

from __future__ import annotations
