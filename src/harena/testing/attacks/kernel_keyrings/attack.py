from attacker import attempt, finish, syscall

KEYCTL_GET_KEYRING_ID, KEYCTL_JOIN_SESSION_KEYRING, KEYCTL_READ = 0, 1, 11
for ring in range(-5, 0):
    attempt(f"keyring {ring}", syscall, "keyctl", KEYCTL_GET_KEYRING_ID, ring, 1, 0, 0)
    attempt(f"read {ring}", syscall, "keyctl", KEYCTL_READ, ring, 0, 0, 0)
    attempt(f"add_key {ring}", syscall, "add_key", b"user", b"harena", b"x", 1, ring)
    attempt(f"request_key {ring}", syscall, "request_key", b"user", b"harena", None, ring)
attempt("join", syscall, "keyctl", KEYCTL_JOIN_SESSION_KEYRING, None, 0, 0, 0)
finish()
