import sys

while True:
    sys.stdout.write("flood " * 1000)
