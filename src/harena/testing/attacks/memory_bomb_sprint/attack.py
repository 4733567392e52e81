import mmap

MADV_HUGEPAGE, SIZE = 14, 256 << 20
heap = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
heap.madvise(MADV_HUGEPAGE)
for offset in range(0, SIZE, 4096):
    heap[offset] = 1
print("ESCAPED: 256 MiB")
