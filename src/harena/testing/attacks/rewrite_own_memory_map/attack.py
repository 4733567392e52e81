from attacker import attempt, finish, syscall

PR_SET_MM = 35
for option in range(1, 16):
    attempt(f"PR_SET_MM {option}", syscall, "prctl", PR_SET_MM, option, 0, 0, 0)
finish()
