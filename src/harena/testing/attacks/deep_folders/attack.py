import os

from attacker import finish

for _ in range(2000):
    try:
        os.mkdir("d" * 50)
        os.chdir("d" * 50)
    except OSError:
        break
finish()
