import os

from attacker import ABSENT, TARGET, attempt, finish, read

os.makedirs("/workspace/jail", exist_ok=True)
old = os.open("/", os.O_RDONLY)
attempt("chroot", os.chroot, "/workspace/jail")
os.fchdir(old)
for _ in range(50):
    os.chdir("..")
attempt("chroot .", os.chroot, ".")
attempt("the secret", read, TARGET["secret"], also=ABSENT)
os.close(old)
os.chdir("/workspace")
os.rmdir("/workspace/jail")
finish()
