"""Where sessions are: `engine` says what the SDK asks for, and has the sessions of this process; `remote` has those of
a server, over `connections`, and `kubernetes` those of pods.
"""
