import contextlib
import os
import socket

from attacker import finish

os.makedirs("tree/closed")
os.mkfifo("tree/pipe")
with contextlib.suppress(OSError):
    socket.socket(socket.AF_UNIX).bind("tree/socket")
for name in (b"\xff\xfe", b"new\nline", b"\x1b[31mred", b"-rf", b"a" * 255, b"..."):
    open(b"tree/" + name, "wb").close()
os.chmod("tree/closed", 0)
finish()
