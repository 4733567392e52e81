import socket

from attacker import attempt, escaped, finish, syscall

attempt("sethostname", socket.sethostname, "owned")
attempt("setdomainname", syscall, "setdomainname", b"owned", 5)
if socket.gethostname() != "box":
    escaped(f"hostname {socket.gethostname()}")
finish()
