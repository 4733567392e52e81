import errno

from attacker import attempt, escaped, finish, status, syscall

PR_SET_KEEPCAPS, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAPBSET_DROP = 8, 28, 38, 24
attempt("no_new_privs off", syscall, "prctl", PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0, also=(errno.EINVAL,))
attempt("securebits", syscall, "prctl", PR_SET_SECUREBITS, 0, 0, 0, 0)
attempt("bounding set", syscall, "prctl", PR_CAPBSET_DROP, 0, 0, 0, 0, also=(errno.EINVAL,))
try:
    syscall("prctl", PR_SET_KEEPCAPS, 1, 0, 0, 0)  # the kernel lets anyone set it: there is nothing to keep
except OSError:
    pass
if status("NoNewPrivs") != "1" or int(status("CapPrm"), 16):
    escaped(f"no_new_privs {status('NoNewPrivs')}, capabilities {status('CapPrm')}")
finish()
