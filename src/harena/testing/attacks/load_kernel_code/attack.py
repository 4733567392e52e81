from attacker import attempt, finish, syscall

attempt("init_module", syscall, "init_module", 0, 0, b"")
attempt("finit_module", syscall, "finit_module", 0, b"", 0)
attempt("delete_module", syscall, "delete_module", b"no_such_module", 0)
attempt("kexec_load", syscall, "kexec_load", 0, 0, 0, 0)
attempt("kexec_file_load", syscall, "kexec_file_load", -1, -1, 0, None, 0)
finish()
