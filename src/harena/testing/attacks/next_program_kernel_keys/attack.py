from attacker import attempt, finish, syscall

attempt("add_key", syscall, "add_key", b"user", b"harena", b"x", 1, -4)
finish()
