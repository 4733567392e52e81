import os

while True:
    os.write(2, b"flood " * 1000)
