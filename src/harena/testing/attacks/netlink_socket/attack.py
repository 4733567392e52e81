import errno
import socket

from attacker import attempt, finish

for protocol, name in ((0, "route"), (9, "audit"), (12, "netfilter"), (15, "uevent"), (16, "generic"), (21, "crypto")):
    attempt(f"netlink {name}", socket.socket, 16, socket.SOCK_RAW, protocol, also=(errno.EAFNOSUPPORT,))
finish()
