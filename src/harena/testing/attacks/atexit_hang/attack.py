import atexit
import threading
import time


@atexit.register
def stay():
    time.sleep(1000)


threading.Thread(target=time.sleep, args=(60,)).start()
