"""Latency that a box's network adds to a connection: `python benchmarks/network.py`.

The same client connects, sends a byte, receives it and closes, over and over: directly on the host's loopback, and from
a box through the gateway. What is added is the difference of the medians. The server runs in its own process. Names
resolve to the loopback without asking anybody.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
from multiprocessing.connection import Connection
from typing import Any

from harena import Network, Sandbox, Spec
from harena.sandbox.bench import Row
from harena.sandbox.network import PROXY_PORT

CLIENT = """
import json, socket, sys, time
host, port, rounds, authority = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if host != "127.0.0.1": host = socket.gethostbyname(host)
times = []
for _ in range(rounds):
    start = time.perf_counter_ns()
    s = socket.create_connection((host, port))
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if authority:
        s.sendall(b"CONNECT %s HTTP/1.1\\r\\n\\r\\n" % authority.encode())
        assert b" 200 " in s.recv(4096)
    s.sendall(b"x")
    assert s.recv(1) == b"x"
    times.append(time.perf_counter_ns() - start)
    s.close()
print(json.dumps(times))
"""
STREAM = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
start, got = time.perf_counter(), 0
s.sendall(b"y")
while data := s.recv(1 << 18): got += len(data)
print(got / (time.perf_counter() - start) / 1e6)
"""
POUR = 256 << 20


def serve(ready: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        ready.send(server.getsockname()[1])
        chunk = bytes(1 << 18)
        while True:
            peer, _ = server.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with peer:
                first = peer.recv(1)
                if first == b"x":
                    peer.sendall(first)
                    peer.recv(1)
                elif first == b"y":
                    for _ in range(POUR // len(chunk)):
                        peer.sendall(chunk)


def measure(quick: bool = False) -> list[Row]:
    rounds, repeats = (100, 2) if quick else (300, 5)
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port: int = ours.recv()
    whole = socket.getaddrinfo

    def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
        return whole("127.0.0.1" if host == "server.example" else host, *rest, **more)

    socket.getaddrinfo = getaddrinfo
    try:
        return table(*collect(port, rounds, repeats))
    finally:
        socket.getaddrinfo = whole
        server.terminate()


def collect(port: int, rounds: int, repeats: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Medians of the repeats in ms, and rates in MB/s; in turn, so that a busy machine is busy for all of them."""
    ways = {
        "direct": ("127.0.0.1", str(port), ""),
        "by address": ("127.0.0.1", str(port), ""),
        "by name": ("server.example", str(port), ""),
        "by proxy": ("127.0.0.1", str(PROXY_PORT), f"server.example:{port}"),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    rates: dict[str, list[float]] = {"direct": [], "by address": []}
    rules = [f"server.example:{port}", f"127.0.0.1:{port}"]
    with Sandbox(Spec(network=Network(allow=rules, max_connections=1_000_000, max_bytes=1 << 50))) as box:

        def client(way: str, *arguments: str) -> bytes:
            if way == "direct":
                return subprocess.run([sys.executable, "-c", *arguments], check=True, capture_output=True).stdout
            result = box.exec(["python3", "-c", *arguments])
            assert result.ok, result.stderr.decode()
            return result.stdout

        for _ in range(repeats):
            for way, (host, where, authority) in ways.items():
                found = json.loads(client(way, CLIENT, host, where, str(rounds), authority))
                times[way].append(statistics.median(found) / 1e6)
            for way, found in rates.items():
                found.append(float(client(way, STREAM, "127.0.0.1", str(port))))
    return times, rates


def table(times: dict[str, list[float]], rates: dict[str, list[float]]) -> list[Row]:
    base = statistics.median(times["direct"])
    rows = [Row("connection on the loopback without a box: connect, a byte, a byte back, p50", base, "ms", None, None)]
    for way in ("by address", "by name", "by proxy"):
        added = statistics.median(times[way]) - base
        spread = f"{min(times[way]) - base:.2f} to {max(times[way]) - base:.2f}"
        rows.append(Row(f"… from a box, {way}: added ({spread})", added, "ms", must=2, aim=0.5))
    rows += [
        Row(
            "data from a server on the loopback, without a box", statistics.median(rates["direct"]), "MB/s", None, None
        ),
        Row("… into a box", statistics.median(rates["by address"]), "MB/s", None, None),
    ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    for row in measure(parser.parse_args().quick):
        print(f"{row.value:9.3f} {row.unit:5} {row.name}")


if __name__ == "__main__":
    main()
