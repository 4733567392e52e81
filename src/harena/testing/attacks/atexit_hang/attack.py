import atexit
import threading
import time


@atexit.register
def stay():
    time.sleep(60)


threading.Thread(target=time.sleep, args=(60,)).start()
