import socket

from attacker import TARGET, UNREACHABLE, attempt, finish


def send(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        client.connect((address, TARGET["udp_port"]))
        client.send(b"hello from the box")
        client.recv(1)  # an empty loopback answers that the port is closed


for address in ("127.0.0.1", "0.0.0.0"):
    attempt(f"UDP to {address}", send, address, also=UNREACHABLE)
finish()
