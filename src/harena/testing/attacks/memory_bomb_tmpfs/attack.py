import os

from attacker import escaped, finish

block, total = b"x" * (1 << 20), 0
for folder in ("/workspace", "/tmp", "/dev/shm", "/dev", "/run", "/var/tmp"):
    try:
        with open(f"{folder}/bomb", "wb", buffering=0) as file:
            for _ in range(512):
                total += file.write(block)
    except OSError:
        pass
if total > 3 * 64 << 20:
    escaped(f"{total >> 20} MiB held in three folders of 64 MiB")
for folder in ("/workspace", "/tmp", "/dev/shm"):
    if os.path.exists(f"{folder}/bomb"):
        os.unlink(f"{folder}/bomb")
finish()
