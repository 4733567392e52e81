from attacker import attempt, finish, syscall

for path in (b"/proc", b"/tmp", b"/workspace", b"/usr", b"/dev", b"/dev/shm", b"/"):
    for flags in (0, 1, 2, 8):
        attempt(f"umount {path} {flags}", syscall, "umount2", path, flags)
finish()
