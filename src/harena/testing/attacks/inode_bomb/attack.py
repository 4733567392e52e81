import os

from attacker import FULL, HOME, escaped, finish

made = 0
try:
    os.mkdir(f"{HOME}/many")
    for made in range(400_000):
        os.symlink("x", f"{HOME}/many/{made}")
    escaped(f"{made} files")
except OSError as error:
    if error.errno not in FULL:
        raise
finish()
