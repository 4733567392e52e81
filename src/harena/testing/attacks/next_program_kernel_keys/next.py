from attacker import attempt, finish, syscall

attempt("the key", syscall, "request_key", b"user", b"harena", None, 0)
finish()
