from attacker import attempt, finish, syscall

attempt("pivot_root . .", syscall, "pivot_root", b".", b".")
attempt("pivot_root /workspace", syscall, "pivot_root", b"/workspace", b"/workspace")
finish()
