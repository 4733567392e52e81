import threading
import time

from attacker import syscall


def grow():
    heap = []
    for _ in range(40):
        heap.append(bytearray(b"x" * (8 << 20)))
        time.sleep(0.01)
    print("ESCAPED: 320 MiB", flush=True)


threading.Thread(target=grow).start()
syscall("exit", 0)  # ends this thread alone
