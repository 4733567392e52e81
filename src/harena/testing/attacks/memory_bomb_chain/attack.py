import os
import time

for _ in range(260):
    if os.fork():
        os.wait()
        os._exit(0)
for _ in range(6):
    if os.fork() == 0:
        heap = []
        for _ in range(6):
            heap.append(b"x" * (8 << 20))
            time.sleep(0.02)
        time.sleep(0.5)
        os._exit(0)
for _ in range(6):
    os.wait()
print("ESCAPED: 288 MiB", flush=True)
