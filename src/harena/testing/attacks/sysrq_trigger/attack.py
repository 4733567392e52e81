import os

from attacker import ABSENT, READ_ONLY, attempt, finish, touch

attempt("/proc/sysrq-trigger", touch, "/proc/sysrq-trigger", os.O_WRONLY, also=ABSENT + READ_ONLY)
finish()
