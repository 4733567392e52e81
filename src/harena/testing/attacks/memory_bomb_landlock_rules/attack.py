import ctypes

from attacker import attempt, finish, syscall

handled = (ctypes.c_uint64 * 3)(1 << 2, 0, 0)
attempt("a ruleset", syscall, "landlock_create_ruleset", handled, 8, 0)
attempt("a rule", syscall, "landlock_add_rule", 3, 1, handled, 0)
finish()
