import socket

from attacker import UNREACHABLE, attempt, finish

for family in (socket.AF_INET, socket.AF_INET6):
    for protocol in (1, 6, 17, 58, 255):
        attempt(f"raw {family} {protocol}", socket.socket, family, socket.SOCK_RAW, protocol, also=UNREACHABLE)
finish()
