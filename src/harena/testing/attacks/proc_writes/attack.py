import glob
import os

from attacker import ABSENT, READ_ONLY, attempt, finish, touch

paths = ["/proc/mtrr", "/proc/scsi/scsi", "/proc/acpi/wakeup", "/proc/timer_stats", "/proc/slabinfo"]
paths += glob.glob("/proc/irq/*/smp_affinity") + glob.glob("/proc/irq/default_smp_affinity")
paths += glob.glob("/proc/fs/**", recursive=True) + glob.glob("/proc/bus/**", recursive=True)
for path in paths:
    if not os.path.isdir(path):
        attempt(path, touch, path, os.O_WRONLY, also=ABSENT + READ_ONLY)
finish()
