import os
import resource
import signal

from attacker import escaped, finish

try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    escaped("core limit raised")
except (ValueError, OSError):
    pass
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGQUIT)
    os._exit(0)
_, status = os.waitpid(pid, 0)
if os.WCOREDUMP(status):
    escaped("a core was dumped")
if any(name.startswith("core") for name in os.listdir(".")):
    escaped("a core file lies in the workspace")
finish()
