import os

from attacker import FULL, HOME, escaped, finish

block, written = b"x" * (1 << 20), 0
try:
    with open(f"{HOME}/bomb", "wb", buffering=0) as file:
        while written < 1 << 30:
            written += file.write(block)
except OSError as error:
    if error.errno not in FULL:
        raise
os.unlink(f"{HOME}/bomb")
if written > 64 << 20:
    escaped(f"wrote {written >> 20} MiB")
finish()
