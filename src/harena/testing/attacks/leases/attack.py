import fcntl

from attacker import TMP, attempt, finish

F_NOTIFY, DN_ACCESS = 1026, 1
with open("/usr/bin/env", "rb") as program, open(f"{TMP}/own", "w+b") as own:
    for file in (program, own):
        attempt("a lease", fcntl.fcntl, file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        attempt("a notice", fcntl.fcntl, file, F_NOTIFY, DN_ACCESS)
finish()
