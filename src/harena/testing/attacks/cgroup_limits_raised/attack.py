import os

from attacker import escaped, finish

CONTROLS = ("cgroup.procs", "cgroup.kill", "memory.max", "memory.limit_in_bytes", "pids.max", "cpu.max", "tasks")
for folder, folders, files in os.walk("/"):
    if folder.startswith(("/proc", "/usr")):
        folders.clear()
        continue
    for name in set(files) & set(CONTROLS):
        escaped(f"{folder}/{name}")
finish()
