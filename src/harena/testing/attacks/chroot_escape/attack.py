import os

from attacker import ABSENT, HOME, TARGET, attempt, finish, read

os.makedirs(f"{HOME}/jail", exist_ok=True)
old = os.open("/", os.O_PATH)
attempt("chroot", os.chroot, f"{HOME}/jail")
os.fchdir(old)
for _ in range(50):
    os.chdir("..")
attempt("chroot .", os.chroot, ".")
attempt("the secret", read, TARGET["secret"], also=ABSENT)
os.close(old)
os.chdir(HOME)
os.rmdir(f"{HOME}/jail")
finish()
