heap = []
for number in range(20_000_000):
    heap.append([number])
print("ESCAPED:", len(heap))
