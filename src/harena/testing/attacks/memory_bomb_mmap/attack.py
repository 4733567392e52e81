import mmap

from attacker import FULL, attempt, finish

pages = []


def grow(flags):
    for _ in range(64):
        pages.append(mmap.mmap(-1, 8 << 20, flags=flags))
        for offset in range(0, 8 << 20, 4096):
            pages[-1][offset] = 1


attempt("512 MiB private", grow, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, also=FULL)
pages.clear()
attempt("512 MiB shared", grow, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, also=FULL)
finish()
