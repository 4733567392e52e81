from attacker import attempt, finish, syscall

OPEN_TREE_CLONE = 1
attempt("fsopen tmpfs", syscall, "fsopen", b"tmpfs", 0)
attempt("fsopen cgroup2", syscall, "fsopen", b"cgroup2", 0)
attempt("fspick", syscall, "fspick", -100, b"/", 0)
attempt("fsconfig", syscall, "fsconfig", 0, 6, None, None, 0)
attempt("fsmount", syscall, "fsmount", 0, 0, 0)
attempt("open_tree", syscall, "open_tree", -100, b"/", OPEN_TREE_CLONE)
attempt("open_tree of a path", syscall, "open_tree", -100, b"/", 0)
attempt("move_mount", syscall, "move_mount", -100, b"/usr", -100, b"/tmp", 0)
finish()
