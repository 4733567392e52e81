from attacker import attempt, finish, syscall

for number in (39, 272, 165):
    attempt(f"x32 call {number}", syscall, number | 0x40000000, 0, 0, 0, 0, 0)
finish()
