from attacker import attempt, finish, syscall

for flags in (0, 4, 8, 0x200, 0x400):
    attempt(f"fanotify {flags:#x}", syscall, "fanotify_init", flags, 0)
finish()
