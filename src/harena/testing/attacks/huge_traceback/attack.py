raise ValueError("x" * (8 << 20))
