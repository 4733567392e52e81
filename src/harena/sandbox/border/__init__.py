"""The border of a box, observed: everything that a caller sends into it and that comes out of it passes an observer.

A box without an observer is not wrapped, so observing costs nothing where nobody does it. Observers are journals
(`harena.journal`) and accounts (`harena.ledger`).
"""
