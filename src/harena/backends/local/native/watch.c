/* Looks at the processes of jobs that run for longer than a moment: memory where no cgroup bounds it, CPU time, and
 * how many there are. One scan of /proc serves all jobs; short jobs are never looked at. */
#include "harena.h"
#include <dirent.h>

#define MAX_SEEN 4096

struct seen {
  int pid, parent;
  uint64_t cpu_ns, reaped_ns, rss_kb, threads;
};
static struct seen seen[MAX_SEEN];
static int seen_count;

static int read_stat(const char *pid, struct seen *one) {
  char path[64], text[1024], *at;
  snprintf(path, sizeof path, "/proc/%s/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return -1;
  text[got] = 0;
  if (!(at = strrchr(text, ')'))) return -1; /* the name may hold anything, so count from its end */
  char state;
  unsigned long utime, stime;
  long threads, rss, cutime, cstime;
  if (sscanf(at + 2, "%c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %ld %ld %*d %*d %ld %*d %*u %*u %ld", &state,
             &one->parent, &utime, &stime, &cutime, &cstime, &threads, &rss) != 8)
    return -1;
  static long ticks, page_kb;
  if (!ticks) ticks = sysconf(_SC_CLK_TCK), page_kb = sysconf(_SC_PAGESIZE) / 1024;
  one->pid = atoi(pid);
  one->reaped_ns = (cutime + cstime) * (1000000000ull / ticks);
  one->cpu_ns = (utime + stime) * (1000000000ull / ticks) + one->reaped_ns;
  one->rss_kb = (uint64_t)rss * page_kb;
  one->threads = state == 'Z' ? 0 : threads;
  return 0;
}

static void scan(void) {
  seen_count = 0;
  DIR *proc = opendir("/proc");
  if (!proc) return;
  for (struct dirent *entry; seen_count < MAX_SEEN && (entry = readdir(proc));)
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && !read_stat(entry->d_name, &seen[seen_count])) seen_count++;
  closedir(proc);
}

uint64_t reaped_cpu_ns(pid_t pid) {
  char name[16];
  struct seen one = {0};
  snprintf(name, sizeof name, "%d", (int)pid);
  return read_stat(name, &one) ? 0 : one.reaped_ns;
}

static struct seen *find(int pid) {
  for (int i = 0; i < seen_count; i++)
    if (seen[i].pid == pid) return &seen[i];
  return NULL;
}

static struct job *job_of(struct seen *one) {
  for (int depth = 0; one && depth < 256; depth++) {
    for (int i = 0; i < jobs_end; i++)
      if (jobs[i].used && jobs[i].init == one->pid) return &jobs[i];
    one = find(one->parent);
  }
  return NULL;
}

/* What a process has for itself and its share of what it shares; 0 where it cannot be read any more. */
static uint64_t proportional_kb(int pid) {
  char path[64], text[2048], *at;
  snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  return (at = strstr(text, "\nPss:")) ? strtoull(at + 5, NULL, 10) : 0;
}

/* Resident pages count once for each process that shares them: before that is held against a job, look closer. */
static int really_over(struct job *job) {
  uint64_t total = 0;
  for (int i = 0; i < seen_count; i++)
    if (seen[i].pid != job->init && job_of(&seen[i]) == job) total += proportional_kb(seen[i].pid);
  return total * 1024 > job->spec.memory;
}

struct total {
  uint64_t cpu_ns, rss_kb, threads;
};

void watch_jobs(void) {
  static struct total totals[MAX_JOBS];
  memset(totals, 0, sizeof totals);
  scan();
  struct seen *self = find(getpid());
  uint64_t own = self ? self->rss_kb : 0;
  for (int i = 0; i < seen_count; i++) {
    struct job *job = job_of(&seen[i]);
    if (!job || job->init == seen[i].pid) continue; /* the job's init shares our own memory */
    struct total *total = &totals[job - jobs];
    total->cpu_ns += seen[i].cpu_ns;
    uint64_t shared = job->spec.kind == KIND_EXEC ? 0 : own; /* a fork of the zygote starts with its pages */
    total->rss_kb += seen[i].rss_kb > shared ? seen[i].rss_kb - shared : 0;
    total->threads += seen[i].threads;
  }
  for (int i = 0; i < jobs_end; i++) {
    struct job *job = &jobs[i];
    if (!job->used || job->spec.kind == KIND_TRUSTED || job->ended) continue;
    if (totals[i].rss_kb > job->watched_peak_kb) job->watched_peak_kb = totals[i].rss_kb;
    job->watched_cpu_ns = totals[i].cpu_ns;
    if (totals[i].threads >= job->spec.processes) job->hits |= 4; /* seen at the limit: counts if it fails */
    if (job->spec.memory && job->slot < 0 && totals[i].rss_kb * 1024 > job->spec.memory && really_over(job))
      job_kill(job, ENDED_MEMORY);
    else if (job->spec.cpu_ns && totals[i].cpu_ns > job->spec.cpu_ns + job->cpu_base_ns) job_kill(job, ENDED_CPU);
  }
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
