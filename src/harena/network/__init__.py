"""The host side of a box's network: the only way out of a box that has one.

policy      decides what is allowed; no effects
inspect     reads what guests send: HTTP requests, requests to the proxy; no effects
tls         reads the server names of TLS; no effects
dns         parses and answers the box's DNS queries; no effects
loop        one thread that waits for all sockets of all boxes
connection  a connection of a guest, from the first byte to its end
gateway     the network of one box: its listening sockets, its connections, its caps and its report

A box's network namespace has only a loopback interface, and every address is routed to it. Backends create sockets
inside the namespace and give them to a `Gateway`, which listens, accepts and connects onwards from the host. No process
of a box takes part, and a box without a gateway reaches nothing.
"""
