import resource

from attacker import attempt, finish, others

for pid in others():
    attempt(f"limits of {pid}", resource.prlimit, pid, resource.RLIMIT_NOFILE)
    attempt(f"new limits of {pid}", resource.prlimit, pid, resource.RLIMIT_CORE, (0, 0))
finish()
