data = b"x" * (1 << 30)
print("ESCAPED:", len(data))
