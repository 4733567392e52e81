import errno

from attacker import attempt, finish, syscall

for key in (4242, 4243):
    attempt(f"segment {key}", syscall, "shmget", key, 0, 0, also=(errno.ENOENT,))
for table in ("shm", "sem", "msg"):
    try:
        with open(f"/proc/sysvipc/{table}") as file:
            lines = file.readlines()
    except OSError:
        continue
    assert len(lines) == 1, f"ESCAPED: {table} shows {lines}"
finish()
