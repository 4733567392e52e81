import os
import resource
import signal

from attacker import escaped, finish

if "OWNED" in os.environ or "LD_PRELOAD" in os.environ or os.getcwd() == "/tmp" or os.umask(0o22) == 0o077:
    escaped("environment, folder or umask of the last program")
if signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN or signal.pthread_sigmask(signal.SIG_BLOCK, []):
    escaped("signals of the last program")
if os.nice(0) == 5 or resource.getrlimit(resource.RLIMIT_NOFILE)[1] == 40:
    escaped("priority or limits of the last program")
finish()
