import os

from attacker import READ_ONLY, attempt, finish


def write(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


attempt("uid_map", write, "/proc/self/uid_map", b"0 0 4294967295\n", also=READ_ONLY)
attempt("gid_map", write, "/proc/self/gid_map", b"0 0 4294967295\n", also=READ_ONLY)
attempt("setgroups", write, "/proc/self/setgroups", b"allow", also=READ_ONLY)
attempt("projid_map", write, "/proc/self/projid_map", b"0 0 1\n", also=READ_ONLY)
finish()
