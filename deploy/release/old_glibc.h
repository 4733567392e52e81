/* Included before every source of zygote.so in a release: glibc 2.33 made these functions symbols of its own, which an
 * older glibc lacks. On 64 bits the kernel's struct stat is glibc's, so the calls can be made directly. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define fstat(fd, info) ((int)syscall(SYS_fstat, fd, info))
#define fstatat(fd, path, info, flags) ((int)syscall(SYS_newfstatat, fd, path, info, flags))
#define mknodat(fd, path, mode, device) ((int)syscall(SYS_mknodat, fd, path, mode, (unsigned)(device)))
