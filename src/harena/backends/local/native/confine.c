/* Turns the calling process into a guest. The order matters: each step needs rights that a later one gives up. */
#include "harena.h"
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

struct config config = {.cgroup_memory = -1, .cgroup_pids = -1, .cgroup_v2 = -1};

int drop_bounds(uint64_t keep) {
  for (int cap = 0; cap < 64; cap++)
    if (!(keep >> cap & 1) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0)) {
      if (errno == EINVAL && cap) break; /* past the last capability of this kernel */
      return -1;
    }
  return 0;
}

static int drop_held(uint64_t keep) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct held[2];
  memset(held, 0, sizeof held);
  if (prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) && errno != EINVAL) return -1;
  if (keep && syscall(SYS_capget, &head, held)) return -1;
  for (int i = 0; i < 2; i++) { /* of those to keep, what it has: an ordinary user of an image has none */
    held[i].permitted = held[i].effective = held[i].permitted & (uint32_t)(keep >> 32 * i);
    held[i].inheritable = 0;
  }
  return syscall(SYS_capset, &head, held);
}

int drop_capabilities(uint64_t keep) { return drop_bounds(keep) || drop_held(keep) ? -1 : 0; }

int held_capabilities(uint64_t *held) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct now[2];
  if (syscall(SYS_capget, &head, now)) return -1;
  *held = now[0].permitted | (uint64_t)now[1].permitted << 32;
  return 0;
}

/* For our own code only: see spawn_trusted. */
int keep_across_exec(uint64_t capabilities) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct held[2];
  if (syscall(SYS_capget, &head, held)) return -1;
  for (int i = 0; i < 2; i++) held[i].inheritable = held[i].permitted & (uint32_t)(capabilities >> 32 * i);
  if (syscall(SYS_capset, &head, held)) return -1;
  for (int cap = 0; cap < 64; cap++)
    if (capabilities >> cap & 1 && prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, cap, 0, 0)) return -1;
  return 0;
}

int stay_on_cpu(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  if (sched_getaffinity(0, sizeof config.all_cpus, &config.all_cpus)) return -1;
  return CPU_ISSET(cpu, &config.all_cpus) ? sched_setaffinity(0, sizeof one, &one) : 0;
}

/* Landlock's rights by ABI version; ioctl on devices (ABI 5) stays open for terminals. */
static uint64_t landlock_rights(int abi) {
  uint64_t rights = (1ull << 13) - 1;
  if (abi >= 2) rights |= 1ull << 13;
  if (abi >= 3) rights |= 1ull << 14;
  return rights;
}
#define LANDLOCK_READ ((1ull << 0) | (1ull << 2) | (1ull << 3)) /* execute, read file, read folder */
#define LANDLOCK_SCOPE_ABSTRACT 1ull
#define LANDLOCK_FILE_ONLY ((1ull << 0) | (1ull << 1) | (1ull << 2) | (1ull << 14))

static int landlock_allow(int ruleset, const char *path, uint64_t rights) {
  struct __attribute__((packed)) {
    uint64_t rights;
    int32_t fd;
  } rule = {rights, open(path, O_PATH | O_CLOEXEC)};
  if (rule.fd < 0) return errno == ENOENT ? 0 : -1;
  int failed = syscall(SYS_landlock_add_rule, ruleset, 1, &rule, 0);
  if (failed && errno == EINVAL) { /* a file takes only the rights that files have */
    rule.rights &= LANDLOCK_FILE_ONLY;
    failed = syscall(SYS_landlock_add_rule, ruleset, 1, &rule, 0);
  }
  close(rule.fd);
  return failed;
}

int landlock_abi(void) {
  static int abi = -1;
  if (abi < 0) abi = syscall(SYS_landlock_create_ruleset, NULL, 0, 1);
  if (abi < 0 && (errno == ENOSYS || errno == EOPNOTSUPP)) abi = 0;
  return abi;
}

/* A second wall behind the read-only mounts. Programs that share a box's network namespace must not meet on abstract
 * sockets: they get a scope of their own. A forkable interpreter's forks will have files on mounts that are not there
 * yet, and a rule cannot name those: it may write wherever the mounts let it. So may all in an image, whose root is
 * writable: a rule for the root holds for every mount below it. */
static int landlock_ruleset(const struct spawn *spec) {
  int abi = landlock_abi();
  if (abi < 0) return -1;
  struct {
    uint64_t fs, net, scoped;
  } rules = {landlock_rights(abi), 0, spec->flags & SPAWN_FRESH_FS ? LANDLOCK_SCOPE_ABSTRACT : 0};
  int ruleset = syscall(SYS_landlock_create_ruleset, &rules, abi >= 6 ? sizeof rules : sizeof rules.fs, 0);
  if (ruleset < 0) return -1;
  int anywhere = spec->flags & SPAWN_FORKABLE || config.image.on;
  int failed = landlock_allow(ruleset, "/", anywhere ? rules.fs : LANDLOCK_READ);
  for (const char *path = config.write_paths; !failed && *path; path += strlen(path) + 1)
    failed = landlock_allow(ruleset, path, rules.fs);
  if (!failed) return ruleset;
  int number = errno;
  close(ruleset);
  errno = number;
  return -1;
}

static int limit(int which, uint64_t value) {
  struct rlimit now, both;
  if (getrlimit(which, &now)) return -1;
  both.rlim_cur = both.rlim_max = value < now.rlim_max ? value : now.rlim_max;
  return setrlimit(which, &both);
}

/* How much a fork of this process starts with, in the kernel's count for RLIMIT_DATA. */
static uint64_t data_in_use(void) {
  char text[256];
  int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  unsigned long pages = 0;
  return sscanf(text, "%*u %*u %*u %*u %*u %lu", &pages) == 1 ? (uint64_t)pages * sysconf(_SC_PAGESIZE) : 0;
}

/* A Python program that asks for too much memory hears so at once; commands meet the cgroup or the watch. */
static uint64_t data_before_fork;

/* Called by an init, whose memory is the one that will be forked. It hardly changes: not asked for each. */
void measure_data(void) {
  static unsigned asked;
  if (asked++ % 64 == 0) data_before_fork = data_in_use() - vault_bytes();
}

static int limit_data(const struct spawn *spec) {
  if (spec->kind == KIND_EXEC || !spec->memory) return 0;
  if (!data_before_fork) return -1;
  return limit(RLIMIT_DATA, spec->memory + data_before_fork);
}

/* counted: a cgroup bounds the processes, and its refusals can be told from other failures; the rlimit stands behind. */
static const char *bound(const struct spawn *spec, int counted) {
  if (sched_setaffinity(0, sizeof config.all_cpus, &config.all_cpus)) return "processors";
  if (limit(RLIMIT_CORE, 0) || limit(RLIMIT_NOFILE, spec->nofile) || limit(RLIMIT_MEMLOCK, 8 << 20) || limit(RLIMIT_RTPRIO, 0)) return "rlimits";
  /* The kernel counts these for the host's user too, so a box gets a small part: queued signals and timers, bytes in queues. */
  if (limit(RLIMIT_SIGPENDING, 1024) || limit(RLIMIT_MSGQUEUE, 256 << 10)) return "rlimits of the user";
  uint64_t processes = (uint64_t)spec->processes + 1; /* + the job's init */
  if (limit(RLIMIT_NPROC, counted ? 2 * processes : processes)) return "rlimit processes";
  if (spec->cpu_ns && limit(RLIMIT_CPU, spec->cpu_ns / 1000000000ull + 2)) return "rlimit cpu";
  return limit_data(spec) ? "rlimit data" : NULL;
}

static const char *filter_calls(const struct spawn *spec) {
  const struct profile_filter *filter = &config.filter[spec->profile];
  if (!filter->count) {
    errno = ENOENT;
    return "seccomp filter not configured";
  }
  struct sock_fprog program = {.len = filter->count, .filter = filter->code};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) ? "seccomp" : NULL;
}

/* What an init made ahead can do for its command. It keeps its capabilities and stays outside the command's Landlock domain:
 * either keeps the command from tracing it, and its memory is that of our loop. */
const char *confine_ahead(const struct spawn *spec, int *ruleset) {
  *ruleset = -1;
  if (landlock_abi() && (*ruleset = landlock_ruleset(spec)) < 0) return "landlock";
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return "no_new_privs";
  if (drop_bounds(config.image.keep)) return "capabilities";
  return filter_calls(spec);
}

/* The rest of it, in the command itself. */
const char *confine_after(const struct spawn *spec, int counted, int ruleset) {
  const char *failed = bound(spec, counted);
  if (failed) return failed;
  if (ruleset >= 0 && syscall(SYS_landlock_restrict_self, ruleset, 0)) return "landlock";
  return drop_held(config.image.keep) ? "capabilities" : NULL;
}

const char *confine(const struct spawn *spec, int counted) {
  int ruleset = -1;
  const char *failed = bound(spec, counted);
  if (failed) return failed;
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return "no_new_privs";
  /* else the kernel has none, or the root of an image changes with a fork and no rule could name the new one: the mount
   * namespace is the wall */
  if (landlock_abi() && !(config.image.on && spec->flags & SPAWN_FORKABLE)) {
    if ((ruleset = landlock_ruleset(spec)) < 0 || syscall(SYS_landlock_restrict_self, ruleset, 0)) return "landlock";
    close(ruleset);
  }
  /* another user than root has lost the right to give up bounds: image_become did it */
  if (config.image.full && config.image.uid ? drop_held(0) : drop_capabilities(config.image.keep)) return "capabilities";
  if (spec->kind != KIND_EXEC && prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)) return "dumpable"; /* for a command execve does it */
  return filter_calls(spec);
}
