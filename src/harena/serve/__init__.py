"""Boxes of this machine for clients elsewhere: `harena serve`.

`server` listens and ends in order, `app` has the paths, `plane` the connection that carries the boxes of one client,
`tokens` who may connect. What a client may put into a box is decided by `harena.node.rules`.
"""
