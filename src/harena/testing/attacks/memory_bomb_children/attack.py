import os
import time

ready, say = os.pipe()
for _ in range(8):
    if os.fork() == 0:
        data = b"x" * (80 << 20)
        os.write(say, data[:1])
        time.sleep(1.5)
        os._exit(0)
os.close(say)
got = 0
while chunk := os.read(ready, 8):
    got += len(chunk)
    if got == 8:
        print("ESCAPED: the tree holds 640 MiB", flush=True)
        os._exit(0)
raise MemoryError("a child did not get its share")
