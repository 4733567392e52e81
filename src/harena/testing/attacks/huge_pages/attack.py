import mmap

from attacker import attempt, finish, syscall

MAP_HUGETLB, MFD_HUGETLB, SHM_HUGETLB, MADV_MERGEABLE, PR_SET_MEMORY_MERGE = 0x40000, 4, 0o4000, 12, 67
attempt("huge pages", mmap.mmap, -1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
page = mmap.mmap(-1, 4096)
attempt("merging of one mapping", page.madvise, MADV_MERGEABLE)
attempt("merging of all pages", syscall, "prctl", PR_SET_MEMORY_MERGE, 1, 0, 0, 0)
finish()
