from attacker import finish, syscall

for key in (4242, 4243):
    try:
        syscall("shmget", key, 4096, 0o1666)
    except OSError:
        pass
finish()
