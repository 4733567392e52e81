"""Boxes in another process, reached over one stream: no descriptor, process id or path crosses it.

`link` has the stream, `messages` what it carries, `verbs` what a client may ask for, `rules` what a client may put into
a box, `node` the side that holds the boxes (`held`) and serves requests, `workers` and `turns` its threads, `client`
the side that uses them, with `connection` (requests and answers) and `streams` (of processes and ports). Neither side
trusts the bytes of the other: each message has a closed schema, and sizes are capped before memory is allocated.
"""
