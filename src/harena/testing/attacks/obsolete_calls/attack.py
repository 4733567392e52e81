from attacker import attempt, finish, syscall

attempt("vhangup", syscall, "vhangup")
attempt("lookup_dcookie", syscall, "lookup_dcookie", 0, 0, 0)
attempt("nfsservctl", syscall, "nfsservctl", 0, 0, 0)
finish()
