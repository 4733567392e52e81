/* Looks at the processes of jobs that run for longer than a moment: memory where no cgroup bounds it, CPU time, and
 * how many there are. One scan of /proc serves all jobs; short jobs are never looked at. What cannot be read counts as
 * the worst it can be: a guest chooses what can be read of it.
 *
 * One file: all of it works on the one scan. */
#include "harena.h"
#include <dirent.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>

/* What the kernel keeps for a guest and no resident memory shows; each a little more than it is on x86-64. */
#define THREAD_KB 24     /* stack and descriptor */
#define PROCESS_KB 48    /* its other records, and those of the mappings that a fork copies */
#define OBJECT_BYTES 256 /* a file that an epoll waits for */
#define INODE_BYTES 1280 /* one that is watched is kept */
#define MAPPING_BYTES 320
#define LOCKS_MOST 8192     /* of files, by one job; not even a cgroup counts them */
#define LOOK_CLOSER_KB 8192 /* when the kernel's own memory, of the whole machine, has grown by this */
#define LOOK_NS 50000000ull /* and for this long */
#define SOCKETS_FEW 64 /* of a box: they hold some 200 KB each at most */

#define WATCH_SOONEST_NS 5000000ull
#define NS_A_KB 250ull /* as fast as memory can be taken */

struct seen {
  int pid, parent, known;
  struct job *job; /* when known */
  char place[32];  /* below /proc: of the process, or of a thread where the first one has ended */
  uint64_t cpu_ns, reaped_ns, rss_kb, threads, kernel_kb, faults;
};
static struct seen *seen;
static int seen_count, seen_room;

static ssize_t read_text(const char *folder, const char *file, char *text, size_t room) {
  char path[96];
  snprintf(path, sizeof path, "/proc/%s/%s", folder, file);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, room - 1);
  int number = errno;
  if (fd >= 0) close(fd);
  errno = number;
  if (got >= 0) text[got] = 0;
  return got;
}

static uint64_t number_after(const char *text, const char *name) {
  const char *at = strstr(text, name);
  return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static int read_stat(const char *place, struct seen *one) {
  char text[1024], *at;
  if (read_text(place, "stat", text, sizeof text) <= 0) return -1;
  if (!(at = strrchr(text, ')'))) return -1; /* the name may hold anything, so count from its end */
  char state;
  unsigned long utime, stime, minor, major;
  long threads, rss, cutime, cstime;
  if (sscanf(at + 2, "%c %d %*d %*d %*d %*d %*u %lu %*u %lu %*u %lu %lu %ld %ld %*d %*d %ld %*d %*u %*u %ld", &state,
             &one->parent, &minor, &major, &utime, &stime, &cutime, &cstime, &threads, &rss) != 10)
    return -1;
  one->faults = minor + major;
  static long ticks, page_kb;
  if (!ticks) ticks = sysconf(_SC_CLK_TCK), page_kb = sysconf(_SC_PAGESIZE) / 1024;
  one->reaped_ns = (cutime + cstime) * (1000000000ull / ticks);
  one->cpu_ns = (utime + stime) * (1000000000ull / ticks) + one->reaped_ns;
  one->rss_kb = (uint64_t)rss * page_kb;
  one->threads = state == 'Z' && threads <= 1 ? 0 : threads;
  if (place != one->place) snprintf(one->place, sizeof one->place, "%s", place);
  return state == 'Z' && threads > 1;
}

/* The first thread of a process has ended and others run on: the kernel then shows no memory for the process, only for
 * its threads. */
static void look_at_threads(struct seen *one) {
  char path[48];
  snprintf(path, sizeof path, "/proc/%d/task", one->pid);
  DIR *tasks = opendir(path);
  if (!tasks) return;
  for (struct dirent *entry; !one->rss_kb && (entry = readdir(tasks));) {
    struct seen thread = {0};
    if (entry->d_name[0] == '.' || strlen(entry->d_name) > 10) continue;
    snprintf(path, sizeof path, "%d/task/%.10s", one->pid, entry->d_name);
    if (read_stat(path, &thread) < 0 || !thread.rss_kb) continue;
    one->rss_kb = thread.rss_kb;
    snprintf(one->place, sizeof one->place, "%.31s", path);
  }
  closedir(tasks);
}

static int by_pid(const void *a, const void *b) {
  int x = ((const struct seen *)a)->pid, y = ((const struct seen *)b)->pid;
  return x < y ? -1 : x > y;
}

static void scan(void) {
  seen_count = 0;
  DIR *proc = opendir("/proc");
  if (!proc) return;
  for (struct dirent *entry; (entry = readdir(proc));) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    if (seen_count == seen_room) {
      struct seen *grown = realloc(seen, (seen_room ? 2 * seen_room : 256) * sizeof *seen);
      if (!grown) break;
      seen = grown;
      seen_room = seen_room ? 2 * seen_room : 256;
    }
    struct seen *one = &seen[seen_count];
    memset(one, 0, sizeof *one);
    one->pid = atoi(entry->d_name);
    int state = read_stat(entry->d_name, one);
    if (state > 0) look_at_threads(one);
    seen_count += state >= 0;
  }
  closedir(proc);
  qsort(seen, seen_count, sizeof *seen, by_pid); /* as /proc lists them, but nobody promised that */
}

uint64_t reaped_cpu_ns(pid_t pid) {
  char name[16];
  struct seen one = {0};
  snprintf(name, sizeof name, "%d", (int)pid);
  return read_stat(name, &one) < 0 ? 0 : one.reaped_ns;
}

static struct seen *find(int pid) {
  struct seen key = {.pid = pid};
  return seen_count ? bsearch(&key, seen, seen_count, sizeof *seen, by_pid) : NULL;
}

static struct job *job_with_init(int pid) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && jobs[i].init == pid) return &jobs[i];
  return NULL;
}

/* Asks the kernel again, for a process whose parent ended while we scanned: it has another one now. */
static struct job *job_as_of_now(int pid) {
  for (int tries = 0, at = pid; tries < 3; tries++, at = pid)
    for (struct seen one = {0}; at; at = one.parent) {
      char name[16];
      struct job *job = job_with_init(at);
      if (job) return job;
      snprintf(name, sizeof name, "%d", at);
      if (read_stat(name, &one) < 0) break;
    }
  return NULL;
}

static struct job *job_of(struct seen *one) {
  struct seen *at = one, *above;
  for (int steps = 0; !at->known; at = above) {
    if ((at->job = job_with_init(at->pid))) at->known = 1;
    else if (!at->parent) at->known = 1; /* the box's init */
    else if (!(above = find(at->parent)) || steps++ > seen_count) at->job = job_as_of_now(at->pid), at->known = 1;
    if (at->known) break;
  }
  struct job *job = at->job;
  for (at = one; !at->known; at = find(at->parent)) at->job = job, at->known = 1;
  return job;
}

/* What was read of a process costs much to read again, and a guest with hundreds of processes would make each look slow.
 * A process without a new page fault has no new page, so what was read still holds, but for pages that others left to it:
 * an eighth of all processes is read again in each look. */
#define REMEMBERED 4096
static struct remembered {
  int pid;
  uint64_t rss_kb, faults, looks, pss_kb, tables_kb;
  int has_pss, has_tables;
} remembered[REMEMBERED];
static uint64_t looks;

static struct remembered *recall(const struct seen *one) {
  struct remembered *known = &remembered[one->pid % REMEMBERED];
  int same = known->pid == one->pid && known->rss_kb == one->rss_kb && known->faults == one->faults;
  int again = (one->pid + looks) % 8 == 0 && known->looks != looks;
  if (!same || again) *known = (struct remembered){.pid = one->pid, .rss_kb = one->rss_kb, .faults = one->faults, .looks = looks};
  return known;
}

/* What a process has for itself and its share of what it shares. One that hides it is held to all that it maps. */
static uint64_t read_proportional_kb(const struct seen *one) {
  char text[2048];
  ssize_t got = read_text(one->place, "smaps_rollup", text, sizeof text);
  if (got > 0 && strstr(text, "\nPss:")) return number_after(text, "\nPss:") + number_after(text, "\nSwapPss:");
  return got < 0 && (errno == ENOENT || errno == ESRCH) ? 0 : one->rss_kb;
}

static uint64_t proportional_kb(const struct seen *one) {
  struct remembered *known = recall(one);
  if (!known->has_pss) known->pss_kb = read_proportional_kb(one), known->has_pss = 1;
  return known->pss_kb;
}

/* Page tables and kernel stacks, which are no resident memory, and what was swapped out. */
static uint64_t unseen_kb(const struct seen *one) {
  char text[4096];
  struct remembered *known = recall(one);
  if (!known->has_tables) {
    known->has_tables = 1;
    known->tables_kb = read_text(one->place, "status", text, sizeof text) <= 0
                           ? 0
                           : number_after(text, "\nVmPTE:") + number_after(text, "\nVmSwap:");
  }
  return one->threads * THREAD_KB + known->tables_kb;
}

/* Resident pages count once for each process that shares them: before that is held against a job, look closer. */
static int really_over(const struct job *job) {
  uint64_t total = job->kernel_kb + job->sockets_kb;
  for (int i = 0; i < seen_count && total * 1024 <= job->spec.memory; i++)
    if (seen[i].pid != job->init && job_of(&seen[i]) == job) total += seen[i].kernel_kb + proportional_kb(&seen[i]);
  return total * 1024 > job->spec.memory;
}

/* ---- what only descriptors and mappings show ---- */

struct held {
  uint64_t locks, bytes; /* bytes: without the locks */
  uint64_t until_ns;     /* of our own CPU time */
  int hidden;            /* some could not be read, or not in time: a guest decides how long it takes */
};

static uint64_t own_cpu_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void weigh_line(struct held *held, const char *line, size_t length, int mapping) {
  if (mapping) held->bytes += MAPPING_BYTES;
  else if (length >= 5 && !memcmp(line, "lock:", 5)) held->locks++;
  else if (length >= 4 && !memcmp(line, "tfd:", 4)) held->bytes += OBJECT_BYTES;
  else if (length >= 8 && !memcmp(line, "inotify ", 8)) held->bytes += INODE_BYTES;
}

/* Adds what the lines of a file of /proc stand for. */
static void weigh(struct held *held, const char *path, int mapping) {
  const size_t room = 1 << 16;
  static char *text; /* names of a guest's files and mappings: in the vault, not in the memory of the next program */
  if (!text && !(text = vault_take(room))) {
    held->hidden = 1;
    return;
  }
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) held->hidden |= errno != ENOENT && errno != ESRCH;
  size_t kept = 0;
  for (ssize_t got; fd >= 0 && !held->hidden && (got = read(fd, text + kept, room - kept)) > 0;) {
    char *at = text, *end = text + kept + got, *next;
    for (; (next = memchr(at, '\n', end - at)); at = next + 1) weigh_line(held, at, next - at, mapping);
    kept = end - at < (ssize_t)room / 2 ? end - at : 0;
    memmove(text, at, kept);
    held->hidden |= own_cpu_ns() > held->until_ns;
  }
  if (fd >= 0) close(fd);
}

static void weigh_descriptors(struct held *held, const char *place) {
  char path[96];
  snprintf(path, sizeof path, "/proc/%s/fdinfo", place);
  DIR *folder = opendir(path);
  if (!folder) {
    held->hidden |= errno != ENOENT && errno != ESRCH;
    return;
  }
  for (struct dirent *entry; !held->hidden && held->locks <= LOCKS_MOST && (entry = readdir(folder));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(path, sizeof path, "/proc/%s/fdinfo/%.10s", place, entry->d_name);
    weigh(held, path, 0);
  }
  closedir(folder);
}

/* How much of the kernel's memory a job holds by descriptors and mappings. A cgroup counts all of that but locks.
 * grown_kb: by how much that of the machine has grown since we first saw the job, which is the worst that it can be. */
static uint64_t held_kb(const struct job *job, uint64_t grown_kb) {
  struct held held = {.until_ns = own_cpu_ns() + LOOK_NS};
  int counted = job->slot >= 0;
  for (int i = 0; i < seen_count && !held.hidden; i++) {
    if (seen[i].pid == job->init || job_of(&seen[i]) != job) continue;
    char path[96];
    weigh_descriptors(&held, seen[i].place);
    snprintf(path, sizeof path, "/proc/%s/maps", seen[i].place);
    if (!counted) weigh(&held, path, 1);
  }
  if (held.locks > LOCKS_MOST) return job->spec.memory / 1024 + 1;
  uint64_t kb = counted ? 0 : held.bytes / 1024;
  return held.hidden && (!counted || held.locks) && grown_kb > kb ? grown_kb : kb;
}

/* ---- the buffers of sockets: the kernel tells them for the network namespace that a box's jobs share ---- */

struct buffered {
  uint32_t inode, kb;
};
static struct buffered *buffered;
static size_t buffered_count, buffered_room;

static int by_inode(const void *a, const void *b) {
  uint32_t x = ((const struct buffered *)a)->inode, y = ((const struct buffered *)b)->inode;
  return x < y ? -1 : x > y;
}

static void add_buffered(uint32_t inode, const struct rtattr *at, int length, int kind) {
  for (; RTA_OK(at, length); at = RTA_NEXT(at, length)) {
    if (at->rta_type != kind || RTA_PAYLOAD(at) < (SK_MEMINFO_WMEM_QUEUED + 1) * sizeof(uint32_t)) continue;
    const uint32_t *memory = RTA_DATA(at);
    uint32_t kb = (memory[SK_MEMINFO_RMEM_ALLOC] + memory[SK_MEMINFO_WMEM_ALLOC] + memory[SK_MEMINFO_WMEM_QUEUED]) / 1024;
    if (!kb) return;
    if (buffered_count == buffered_room) {
      struct buffered *grown = realloc(buffered, (buffered_room + 256) * sizeof *buffered);
      if (!grown) return;
      buffered = grown;
      buffered_room += 256;
    }
    buffered[buffered_count++] = (struct buffered){inode, kb};
  }
}

/* Asks for all sockets of a family; `request` is a struct of the family. */
static void ask_sockets(int fd, int family, const void *request, size_t size) {
  static char room[1 << 15];
  struct nlmsghdr head = {.nlmsg_len = sizeof head + size, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP};
  struct iovec parts[2] = {{&head, sizeof head}, {(void *)request, size}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
  if (sendmsg(fd, &message, 0) < 0) return;
  for (ssize_t got; (got = recv(fd, room, sizeof room, 0)) > 0;)
    for (struct nlmsghdr *one = (void *)room; NLMSG_OK(one, got); one = NLMSG_NEXT(one, got)) {
      if (one->nlmsg_type == NLMSG_DONE || one->nlmsg_type == NLMSG_ERROR) return;
      if (family == AF_UNIX) {
        struct unix_diag_msg *socket = NLMSG_DATA(one);
        add_buffered(socket->udiag_ino, (void *)(socket + 1), NLMSG_PAYLOAD(one, sizeof *socket), UNIX_DIAG_MEMINFO);
      } else {
        struct inet_diag_msg *socket = NLMSG_DATA(one);
        add_buffered(socket->idiag_inode, (void *)(socket + 1), NLMSG_PAYLOAD(one, sizeof *socket), INET_DIAG_SKMEMINFO);
      }
    }
}

static uint64_t look_at_sockets(void) {
  buffered_count = 0;
  int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (fd < 0) return 0;
  struct unix_diag_req local = {.sdiag_family = AF_UNIX, .udiag_states = ~0u, .udiag_show = UDIAG_SHOW_MEMINFO};
  ask_sockets(fd, AF_UNIX, &local, sizeof local);
  for (int i = 0; i < 4; i++) {
    struct inet_diag_req_v2 other = {.sdiag_family = i & 1 ? AF_INET6 : AF_INET, .sdiag_protocol = i & 2 ? IPPROTO_UDP : IPPROTO_TCP,
                                     .idiag_ext = 1 << (INET_DIAG_SKMEMINFO - 1), .idiag_states = ~0u};
    ask_sockets(fd, AF_INET, &other, sizeof other);
  }
  close(fd);
  qsort(buffered, buffered_count, sizeof *buffered, by_inode);
  uint64_t kb = 0;
  for (size_t i = 0; i < buffered_count; i++) kb += buffered[i].kb;
  return kb;
}

/* Of the sockets that a process holds. Each counts once: what two processes share is the first one's. */
static uint64_t socket_kb(const char *place, uint64_t all_kb) {
  char path[96], link[64];
  uint64_t kb = 0;
  snprintf(path, sizeof path, "/proc/%s/fd", place);
  DIR *folder = opendir(path);
  if (!folder) return errno == ENOENT || errno == ESRCH ? 0 : all_kb;
  for (struct dirent *entry; (entry = readdir(folder));) {
    struct buffered key = {0}, *found;
    ssize_t length = readlinkat(dirfd(folder), entry->d_name, link, sizeof link - 1);
    if (length <= 0) continue;
    link[length] = 0;
    if (sscanf(link, "socket:[%u]", &key.inode) != 1) continue;
    found = buffered_count ? bsearch(&key, buffered, buffered_count, sizeof *buffered, by_inode) : NULL;
    if (found) kb += found->kb, found->kb = 0;
  }
  closedir(folder);
  return kb;
}

/* Sockets that are used are many before they hold much. A job that is alone has them all, and to say so is much quicker
 * than to read its descriptors, of which a guest has thousands. */
static void watch_sockets(void) {
  char text[512];
  int uncounted = 0, others = 0;
  struct job *alone = NULL;
  for (int i = 0; i < jobs_end; i++) {
    struct job *job = &jobs[i];
    if (!job->used) continue;
    job->sockets_kb = 0;
    if (!job->id || job->spec.kind == KIND_TRUSTED || job->ended) continue;
    if (job->slot < 0 && job->spec.memory) alone = job, uncounted++;
    else others++;
  }
  if (!uncounted || read_text("self/net", "sockstat", text, sizeof text) <= 0 || number_after(text, "used ") < SOCKETS_FEW) return;
  uint64_t all_kb = look_at_sockets();
  if (uncounted == 1 && !others) {
    alone->sockets_kb = all_kb;
    return;
  }
  for (int i = 0; all_kb && i < seen_count; i++) {
    struct job *job = job_of(&seen[i]);
    if (job && job->slot < 0 && job->init != seen[i].pid) job->sockets_kb += socket_kb(seen[i].place, all_kb);
  }
}

/* Those are slow to look at: only when the machine's slabs have grown. */
static void look_closer(void) {
  static uint64_t level_kb;
  char text[4096];
  if (read_text(".", "meminfo", text, sizeof text) <= 0) return;
  uint64_t now_kb = number_after(text, "\nSUnreclaim:");
  if (!level_kb || now_kb < level_kb) level_kb = now_kb;
  int closer = now_kb >= level_kb + LOOK_CLOSER_KB;
  if (closer) level_kb = now_kb;
  for (int i = 0; i < jobs_end; i++) {
    struct job *job = &jobs[i];
    if (!job->used || job->spec.kind == KIND_TRUSTED || job->ended || !job->spec.memory) continue;
    if (!job->slabs_kb || now_kb < job->slabs_kb) job->slabs_kb = now_kb;
    if (closer) job->kernel_kb = held_kb(job, now_kb - job->slabs_kb);
  }
}

struct total {
  uint64_t cpu_ns, rss_kb, kernel_kb, threads;
};

static void add_up(struct total *totals) {
  struct seen *self = find(getpid());
  uint64_t own = self ? self->rss_kb : 0, own_unseen = self ? unseen_kb(self) : 0;
  for (int i = 0; i < seen_count; i++) {
    struct seen *one = &seen[i];
    struct job *job = job_of(one);
    if (!job) continue;
    struct total *total = &totals[job - jobs];
    if (job->init == one->pid) { /* it shares our own memory, and waits for whom the guest's processes left behind */
      total->cpu_ns += one->reaped_ns;
      continue;
    }
    total->cpu_ns += one->cpu_ns;
    int forked = job->spec.kind != KIND_EXEC; /* a fork of the zygote starts with its pages */
    total->rss_kb += one->rss_kb > own * forked ? one->rss_kb - own * forked : 0;
    total->threads += one->threads;
    if (job->slot >= 0 || !job->spec.memory) continue;
    one->kernel_kb = unseen_kb(one);
    one->kernel_kb -= forked && one->kernel_kb > own_unseen ? own_unseen : 0;
    one->kernel_kb += one->threads ? PROCESS_KB : 0;
    total->kernel_kb += one->kernel_kb;
  }
}

uint64_t watch_jobs(void) {
  static struct total totals[MAX_JOBS];
  uint64_t started_ns = now_ns(), pause_ns = WATCH_EVERY_NS;
  memset(totals, 0, sizeof totals);
  looks++;
  scan();
  add_up(totals);
  look_closer();
  watch_sockets();
  for (int i = 0; i < jobs_end; i++) {
    struct job *job = &jobs[i];
    if (!job->used || job->spec.kind == KIND_TRUSTED || job->ended) continue;
    if (totals[i].rss_kb > job->watched_peak_kb) job->watched_peak_kb = totals[i].rss_kb;
    if (totals[i].cpu_ns > job->watched_cpu_ns) job->watched_cpu_ns = totals[i].cpu_ns; /* some may have ended meanwhile */
    if (totals[i].threads >= job->spec.processes) job->hits |= 4; /* seen at the limit: counts if it fails */
    if (config.image.full && job->slot < 0 && job->spec.processes && totals[i].threads > job->spec.processes + 1) {
      job->hits |= 1; /* the rlimit is one for each user, and root of an image can be many */
      job_kill(job, ENDED_WALL);
      continue;
    }
    uint64_t used_kb = job->kernel_kb + (job->slot < 0 ? totals[i].rss_kb + totals[i].kernel_kb + job->sockets_kb : 0);
    if (job->slot < 0 && job->id && job->spec.memory) {
      uint64_t room_kb = job->spec.memory / 1024 > used_kb ? job->spec.memory / 1024 - used_kb : 0;
      if (room_kb * NS_A_KB < pause_ns) pause_ns = room_kb * NS_A_KB;
    }
    if (job->spec.memory && used_kb * 1024 > job->spec.memory && (job->slot >= 0 || really_over(job)))
      job_kill(job, ENDED_MEMORY);
    else if (job->spec.cpu_ns && totals[i].cpu_ns > job->spec.cpu_ns + job->cpu_base_ns) job_kill(job, ENDED_CPU);
  }
  uint64_t took_ns = 2 * (now_ns() - started_ns), least_ns = took_ns > WATCH_SOONEST_NS ? took_ns : WATCH_SOONEST_NS;
  if (pause_ns < least_ns) pause_ns = least_ns; /* to look sooner must not take more than a third of the time */
  return pause_ns < WATCH_EVERY_NS ? pause_ns : WATCH_EVERY_NS;
}

int count_forks(struct job *job) {
  int forks = 0;
  for (int i = 0; i < jobs_end; i++) forks += jobs[i].used && jobs[i].adopted && jobs[i].above == job;
  return forks;
}

/* Ends a forkable job whose forks must live on: every process of it, but not its init and not what is below the init
 * of another job. A fork's init also stays, with the fork's files, until its view is closed. Returns 0 when the init
 * can simply be killed. */
int tree_kill_around(struct job *job) {
  if (!(job->spec.flags & SPAWN_FORKABLE)) return 0;
  scan();
  if (!count_forks(job) && (!job->adopted || job->closing)) return 0;
  for (int round = 0, found = 1; found && round < 100; round++) {
    found = 0;
    for (int i = 0; i < seen_count; i++)
      if (seen[i].pid != job->init && job_of(&seen[i]) == job && seen[i].threads) {
        kill(seen[i].pid, SIGKILL);
        found = 1;
      }
    if (found) scan();
  }
  return 1;
}
