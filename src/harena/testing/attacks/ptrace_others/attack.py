from attacker import attempt, finish, others, syscall

PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
for pid in {*others(), 1}:
    attempt(f"attach to {pid}", syscall, "ptrace", PTRACE_ATTACH, pid, 0, 0)
    attempt(f"seize {pid}", syscall, "ptrace", PTRACE_SEIZE, pid, 0, 0)
finish()
