import threading
import time

for _ in range(5000):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print("ESCAPED: 5000 threads")
