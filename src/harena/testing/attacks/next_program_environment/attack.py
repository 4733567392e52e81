import os
import resource
import signal

from attacker import TARGET, finish

os.environ["OWNED"] = TARGET["mark"]
os.putenv("LD_PRELOAD", "/tmp/owned.so")
os.umask(0o077)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
os.nice(5)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
os.chdir("/tmp")
finish()
