import ctypes
import errno
import struct

from attacker import attempt, escaped, finish, status, syscall

for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
    if int(status(name), 16):
        escaped(f"{name} is {status(name)}")
header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
everything = ctypes.create_string_buffer(struct.pack("6I", *[0xFFFFFFFF] * 6))
attempt("capset", syscall, "capset", header, everything)
PR_CAP_AMBIENT, RAISE = 47, 2
for capability in (0, 1, 12, 19, 21):
    attempt(f"ambient {capability}", syscall, "prctl", PR_CAP_AMBIENT, RAISE, capability, 0, 0, also=(errno.EINVAL,))
finish()
