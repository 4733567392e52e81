import ctypes
import errno
import socket
import struct

from attacker import attempt, finish

SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF, SO_LOCK_FILTER, IPT_SO_GET_INFO, TCP_ULP = 26, 51, 44, 64, 31
accept = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0xFFFF), 8)
program = struct.pack("HxxxxxxQ", 1, ctypes.addressof(accept))
refused = (errno.ENOPROTOOPT,)
pair = socket.socketpair()
attempt("a filter", pair[0].setsockopt, socket.SOL_SOCKET, SO_ATTACH_FILTER, program, also=refused)
attempt("a filter of ports", pair[0].setsockopt, socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program, also=refused)
attempt("a locked filter", pair[0].setsockopt, socket.SOL_SOCKET, SO_LOCK_FILTER, 1, also=refused)
attempt("urgent data", pair[0].send, b"x", socket.MSG_OOB, also=(errno.EOPNOTSUPP,))
try:
    tcp = socket.socket()
except OSError:
    tcp = pair[0]
attempt("netfilter's tables", tcp.getsockopt, socket.IPPROTO_IP, IPT_SO_GET_INFO, 84, also=refused)
attempt("another protocol on TCP", tcp.setsockopt, socket.IPPROTO_TCP, TCP_ULP, b"tls", also=refused)
finish()
