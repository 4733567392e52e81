while True:
    heap = []
    try:
        while True:
            heap.append(bytearray(1 << 20))
    except MemoryError:
        pass
