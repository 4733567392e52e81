import os

from attacker import finish

with open("huge", "wb") as file:
    for size in (1 << 40, 1 << 34, 1 << 30):
        try:
            os.ftruncate(file.fileno(), size)
            break
        except OSError:
            pass
finish()
