import os

from attacker import escaped, finish

try:
    if os.listdir("/sys"):
        escaped(f"/sys shows {os.listdir('/sys')}")
except OSError:
    pass
FORBIDDEN = ("sysfs", "debugfs", "tracefs", "securityfs", "bpf", "cgroup", "cgroup2", "configfs", "efivarfs")
try:
    with open("/proc/self/mounts") as file:
        for line in file:
            if line.split()[2] in FORBIDDEN:
                escaped(line.strip())
except PermissionError:
    pass
finish()
