import ctypes
import resource
import struct

from attacker import attempt, escaped, finish, others, syscall

for name in ("NPROC", "NOFILE", "CORE", "FSIZE", "MEMLOCK", "RTPRIO", "NICE", "MSGQUEUE", "AS", "DATA"):
    number = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(number)
    if hard == resource.RLIM_INFINITY:
        continue
    wanted = ctypes.create_string_buffer(struct.pack("QQ", soft & (1 << 64) - 1, hard + 1))
    attempt(f"raise {name}", syscall, "prlimit64", 0, number, wanted, None)
for pid in others():
    attempt(f"prlimit of {pid}", syscall, "prlimit64", pid, resource.RLIMIT_NOFILE, wanted, None)
if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
    escaped("core dumps are possible")
finish()
