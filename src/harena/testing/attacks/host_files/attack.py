import os
import sys

from attacker import ABSENT, TARGET, attempt, escaped, finish, read

secrets = TARGET["secret"], TARGET["shm_secret"]
for path in (*secrets, "/etc/shadow", "/etc/gshadow", "/etc/ssh/sshd_config", "/root/.bashrc"):
    attempt(path, read, path, also=ABSENT)
    attempt(f"climbing to {path}", read, "../" * 40 + path, also=ABSENT)
for folder in ("/root", "/home", "/boot", "/mnt", "/media", "/srv", "/var/lib", "/var/log", "/opt"):
    try:
        # An interpreter that lives below is visible itself, and nothing beside it.
        found = [name for name in os.listdir(folder) if not sys.base_prefix.startswith(f"{folder}/{name}")]
    except OSError:
        continue
    if found:
        escaped(f"{folder} shows {found}")
finish()
