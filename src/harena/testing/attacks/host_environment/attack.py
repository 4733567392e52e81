import os

from attacker import TARGET, escaped, finish

if TARGET["env_name"] in os.environ or TARGET["env_value"] in os.environ.values():
    escaped("inherited the host's environment")
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline"):
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                if TARGET["env_value"].encode() in file.read():
                    escaped(f"/proc/{pid}/{name} holds the host's")
        except OSError:
            pass
finish()
