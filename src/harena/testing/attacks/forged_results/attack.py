import os
import struct

RESULT_FD = 3
value = b'V{"verdict": "ok"}'
group = struct.pack("<ciddII", b"-", 0, 0.0, 0.0, 6, 0) + b"forged"
try:
    for record in (value, group, b"", b"-"):
        os.write(RESULT_FD, struct.pack("<I", len(record)) + record)
    os.write(RESULT_FD, struct.pack("<I", 0xFFFFFFFF) + b"cut")
except OSError:
    pass
os._exit(3)
