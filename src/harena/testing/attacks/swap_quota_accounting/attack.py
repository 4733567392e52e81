from attacker import attempt, finish, syscall

attempt("swapon", syscall, "swapon", b"/workspace/none", 0)
attempt("swapoff", syscall, "swapoff", b"/workspace/none")
attempt("quotactl", syscall, "quotactl", 0x80000100, None, 0, 0)
attempt("quotactl_fd", syscall, "quotactl_fd", 0, 0x80000100, 0, 0)
attempt("acct", syscall, "acct", b"/workspace/none")
attempt("acct off", syscall, "acct", None)
finish()
