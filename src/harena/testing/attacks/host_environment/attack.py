import os

from attacker import TARGET, escaped, finish, pids

if TARGET["env_name"] in os.environ or TARGET["env_value"] in os.environ.values():
    escaped("inherited the host's environment")
for pid in pids():
    for name in ("environ", "cmdline"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if TARGET["env_value"].encode() in file.read():
                    escaped(f"/proc/{pid}/{name} holds the host's")
        except OSError:
            pass
finish()
