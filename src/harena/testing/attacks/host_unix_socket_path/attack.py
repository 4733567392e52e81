import errno
import socket

from attacker import ABSENT, TARGET, attempt, finish


def connect(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.connect(path)


for path in (
    TARGET["unix_path"],
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/dev/log",
):
    attempt(path, connect, path, also=(*ABSENT, errno.EAFNOSUPPORT))
finish()
