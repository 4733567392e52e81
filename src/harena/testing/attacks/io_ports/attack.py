import ctypes

from attacker import attempt, finish, syscall

IOPL, IOPERM, MODIFY_LDT = 172, 173, 154
attempt("iopl", syscall, IOPL, 3)
attempt("ioperm", syscall, IOPERM, 0x70, 2, 1)
attempt("modify_ldt write", syscall, MODIFY_LDT, 1, ctypes.create_string_buffer(16), 16)
attempt("modify_ldt read", syscall, MODIFY_LDT, 0, ctypes.create_string_buffer(16), 16)
finish()
