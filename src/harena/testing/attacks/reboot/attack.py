from attacker import attempt, finish, syscall

attempt("reboot", syscall, "reboot", 0xFEE1DEAD, 672274793, 0, 0)
finish()
