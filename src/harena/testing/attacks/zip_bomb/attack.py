import zlib

packer = zlib.compressobj(1)
bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(256)) + packer.flush()
size = len(zlib.decompress(bomb))
print("ESCAPED:", size)
