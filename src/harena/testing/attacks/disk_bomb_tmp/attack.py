import os

from attacker import FULL, TMP, escaped, finish

block = b"x" * (1 << 20)
for folder in (TMP, "/dev/shm"):
    written = 0
    try:
        for number in range(1024):
            with open(f"{folder}/bomb{number}", "wb", buffering=0) as file:
                written += file.write(block)
    except OSError as error:
        if error.errno not in (*FULL, 2, 13):
            raise
    try:
        for name in os.listdir(folder):
            if name.startswith("bomb"):
                os.unlink(f"{folder}/{name}")
    except PermissionError:
        pass
    if written > 64 << 20:
        escaped(f"wrote {written >> 20} MiB to {folder}")
finish()
