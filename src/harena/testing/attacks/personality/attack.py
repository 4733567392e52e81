from attacker import attempt, finish, syscall

FLAGS = {"no randomisation": 0x40000, "read implies exec": 0x400000, "mmap page zero": 0x100000, "SVr4": 1}
for name, flags in FLAGS.items():
    attempt(name, syscall, "personality", flags)
finish()
