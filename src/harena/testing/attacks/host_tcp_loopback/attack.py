import socket

from attacker import TARGET, UNREACHABLE, attempt, finish


def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        client.connect((address, TARGET["tcp_port"]))
        client.sendall(b"hello from the box")


for address in ("127.0.0.1", "127.0.0.2", "0.0.0.0"):
    attempt(f"TCP to {address}", connect, socket.AF_INET, address, also=UNREACHABLE)
for address in ("::1", "::ffff:127.0.0.1"):
    attempt(f"TCP to {address}", connect, socket.AF_INET6, address, also=UNREACHABLE)
finish()
