import socket

from attacker import TARGET, UNREACHABLE, attempt, escaped, finish

NAME = b"\x06secret\x07example\x07invalid\0"
QUERY = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0" + NAME + b"\0\x01\0\x01"


def ask(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        client.connect((address, port))
        client.send(QUERY)
        return client.recv(512)


for address, port in (("127.0.0.1", 53), ("127.0.0.53", 53), ("127.0.0.1", TARGET["udp_port"])):
    attempt(f"query to {address}:{port}", ask, address, port, also=UNREACHABLE)
try:
    with open("/etc/resolv.conf") as file:
        servers = [line.split()[1] for line in file if line.startswith("nameserver")]
except OSError:
    servers = []
# Only where the C library would ask this loopback: a broken box must not make the test send a packet anywhere.
if all(server.startswith("127.") for server in servers):
    try:
        escaped(f"resolved: {socket.getaddrinfo('secret.example.invalid', 80)}")
    except OSError:
        pass
else:
    escaped(f"the host's resolver is configured: {servers}")
finish()
