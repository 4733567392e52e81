import os
import sys

sys.stdout.flush()
os.write(1, bytes(range(256)) * 4 + b"\x1b]0;owned\x07\x1b[2J\xed\xa0\x80\xff\xfe\0\0\r\n")
os.write(2, b"\xff" * 100 + b"\0")
print("denied")
