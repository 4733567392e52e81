import resource

from attacker import finish

finish()
for name in ("NOFILE", "NPROC", "FSIZE", "STACK"):
    resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (0, 0))
