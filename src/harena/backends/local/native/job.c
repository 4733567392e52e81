/* One execution. Every job has namespaces of its own and an init in them that shares our memory (CLONE_VM), so that
 * making it copies no page tables and its report needs no pipe. The init is pid 1 of the job; when the job's main
 * process ends, or we kill the init, the kernel ends everything else in there.
 *
 * One file: the loop, the init and the main process of a job take turns in the same structure. */
#include "harena.h"
#include <limits.h>
#include <linux/futex.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define STACK_BYTES (64 << 10)
#define SLOTS MAX_JOBS
#define MAX_TERMINALS "32" /* of one job; the kernel has 3,072 for all that are not the host's own */

struct job *jobs;
int jobs_end;
int bell = -1;
static struct slot slots[SLOTS];
static int views[MAX_VIEWS]; /* a pidfd of the process whose namespaces a view lives in, + 1; 0: none */

/* ---- cgroups: made on first use below the folder the host gave us, and used again by later jobs ---- */

static int write_fd(int fd, const char *text) { return write(fd, text, strlen(text)) < 0 ? -1 : 0; }

static int write_number(int fd, uint64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%llu", (unsigned long long)value);
  return write_fd(fd, text);
}

static int open_in(int folder, const char *name, const char *file, int flags) {
  char path[64];
  snprintf(path, sizeof path, "%s/%s", name, file);
  return openat(folder, path, flags | O_CLOEXEC);
}

static int slot_make(int number) {
  struct slot *slot = &slots[number];
  int memory = config.cgroup_v2 >= 0 ? config.cgroup_v2 : config.cgroup_memory;
  int pids = config.cgroup_v2 >= 0 ? config.cgroup_v2 : config.cgroup_pids;
  char name[32];
  snprintf(name, sizeof name, "%d-%d", (int)getpid(), number);
  slot->procs[0] = slot->procs[1] = slot->memory_max = slot->pids_max = slot->oom_events = slot->pids_events = -1;
  if (memory >= 0) {
    if (mkdirat(memory, name, 0755) && errno != EEXIST) return -1;
    slot->procs[0] = open_in(memory, name, "cgroup.procs", O_WRONLY);
    slot->memory_max = open_in(memory, name, config.cgroup_v2 >= 0 ? "memory.max" : "memory.limit_in_bytes", O_WRONLY);
    slot->oom_events = open_in(memory, name, config.cgroup_v2 >= 0 ? "memory.events" : "memory.oom_control", O_RDONLY);
    if (slot->procs[0] < 0 || slot->memory_max < 0) return -1;
    int swap = open_in(memory, name, config.cgroup_v2 >= 0 ? "memory.swap.max" : "memory.swappiness", O_WRONLY);
    if (swap >= 0) {
      if (write_fd(swap, "0")) slot->made = 0; /* a kernel without swap accounting: nothing to turn off */
      close(swap);
    }
  }
  if (pids >= 0) {
    if (pids != memory) {
      if (mkdirat(pids, name, 0755) && errno != EEXIST) return -1;
      if ((slot->procs[1] = open_in(pids, name, "cgroup.procs", O_WRONLY)) < 0) return -1;
    }
    slot->pids_events = open_in(pids, name, "pids.events", O_RDONLY);
    if ((slot->pids_max = open_in(pids, name, "pids.max", O_WRONLY)) < 0) return -1;
  }
  slot->made = 1;
  return 0;
}

static uint64_t read_counter(int fd, const char *key) {
  char text[512], *at;
  ssize_t got = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
  if (got <= 0) return 0;
  text[got] = 0;
  return (at = strstr(text, key)) ? strtoull(at + strlen(key), NULL, 10) : 0;
}

static int have_cgroups(void) { return config.cgroup_v2 >= 0 || config.cgroup_memory >= 0 || config.cgroup_pids >= 0; }

/* The limits of a slot are written only when they change. */
static int slot_limit(struct slot *slot, const struct spawn *spec) {
  if (slot->memory_max >= 0 && slot->memory_set != spec->memory) {
    if (write_number(slot->memory_max, spec->memory)) return -1;
    slot->memory_set = spec->memory;
  }
  uint64_t processes = spec->processes;
  if (slot->pids_max >= 0 && slot->pids_set != processes) {
    if (write_number(slot->pids_max, processes)) return -1;
    slot->pids_set = processes;
  }
  return 0;
}

static int slot_take(struct job *job) {
  job->slot = -1;
  if (!have_cgroups() || job->spec.kind == KIND_TRUSTED || job->waiting || job->holds) return 0;
  for (int i = 0; i < SLOTS; i++) {
    struct slot *slot = &slots[i];
    if (slot->busy) continue;
    if (!slot->made && slot_make(i)) return -1;
    slot->busy = 1;
    if (slot_limit(slot, &job->spec)) {
      if (errno != EBUSY) return -1;
      continue; /* files that a job left keep more in use than the new limit: nobody can use this one any more */
    }
    job->slot = i;
    return 0;
  }
  errno = EAGAIN;
  return -1;
}

/* Guests join, their inits do not: the init shares our memory, and the kernel, out of memory in the cgroup, would end all
 * that share it. 0: the calling process. */
int slot_join(struct job *job, pid_t pid) {
  for (int i = 0; job->slot >= 0 && i < 2; i++)
    if (slots[job->slot].procs[i] >= 0 && write_number(slots[job->slot].procs[i], pid)) return -1;
  return 0;
}

/* Cgroups of version 1 take a process only from its own user: an image's guest is another one than we are. */
static int slot_join_as_guest(struct job *job, pid_t pid) {
  volatile int failed = 0;
  struct slot *slot = &slots[job->slot];
  for (int i = 0; i < 2; i++)
    if (slot->procs[i] >= 0 && fchmod(slot->procs[i], 0666)) return -1; /* no guest sees the file */
  pid_t helper = vfork();
  if (helper == 0) {
    char path[32];
    if (syscall(SYS_setresuid, -1, IDS_FIRST + config.image.uid, -1)) failed = errno;
    for (int i = 0; !failed && i < 2; i++) {
      snprintf(path, sizeof path, "/proc/self/fd/%d", slot->procs[i]);
      int fd = slot->procs[i] < 0 ? -1 : open(path, O_WRONLY | O_CLOEXEC);
      if (slot->procs[i] >= 0 && (fd < 0 || write_number(fd, pid))) failed = errno;
      if (fd >= 0) close(fd);
    }
    _exit(0);
  }
  if (helper < 0) return -1;
  while (waitpid(helper, NULL, 0) < 0 && errno == EINTR) {}
  if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)) return -1; /* it shared our memory, and changed its user */
  return failed ? (errno = failed, -1) : 0;
}

int slot_adopt(struct job *job, pid_t pid) {
  if (slot_take(job)) return -1;
  if (!slot_join(job, pid)) return 0;
  return errno == EACCES && config.image.full ? slot_join_as_guest(job, pid) : -1;
}

/* Was a kernel limit hit since this was last asked of the slot? Asked at the end of every job. */
void slot_read_hits(struct job *job) {
  if (job->slot < 0) return;
  struct slot *slot = &slots[job->slot];
  uint64_t kills = read_counter(slot->oom_events, "oom_kill "), refusals = read_counter(slot->pids_events, "max ");
  if (kills > slot->oom_seen) job->hits |= 2;
  if (refusals > slot->pids_seen) job->hits |= 1;
  slot->oom_seen = kills;
  slot->pids_seen = refusals;
}

/* ---- inside the job's init ---- */

/* The init shares errno with the process that made it, which waits meanwhile; once it runs beside that process it
 * makes raw calls, which leave errno alone. */
static long raw4(long n, long a, long b, long c, long d) { return raw5(n, a, b, c, d, 0); }

static void announce(struct job *job, int value) {
  __atomic_store_n(&job->ready, value, __ATOMIC_SEQ_CST);
  raw4(SYS_futex, (long)&job->ready, FUTEX_WAKE, 1, 0);
}

static int fail(struct job *job, const char *step) {
  job->failed_errno = errno;
  job->failed_step = step;
  announce(job, -1);
  return 111;
}

static int write_file(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  int failed = write_fd(fd, text), number = errno;
  close(fd);
  errno = number;
  return failed;
}

static int map_ids(void) {
  char map[64];
  if (config.image.on)
    return write_file("/proc/self/setgroups", "deny") || write_file("/proc/self/uid_map", config.image.uid_map) ||
           write_file("/proc/self/gid_map", config.image.gid_map);
  snprintf(map, sizeof map, "%d %d 1", GUEST_ID, GUEST_ID);
  return write_file("/proc/self/setgroups", "deny") || write_file("/proc/self/uid_map", map) ||
         write_file("/proc/self/gid_map", map);
}

/* Many ids are mapped by the process that made us: see image_map. */
static int await_ids(struct job *job) {
  int mapped;
  while (!(mapped = __atomic_load_n(&job->mapped, __ATOMIC_SEQ_CST))) raw4(SYS_futex, (long)&job->mapped, FUTEX_WAIT, 0, 0);
  return mapped < 0 ? (errno = -mapped, -1) : image_root();
}

static int fresh_tmpfs(const char *path, const char *options) {
  return mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options);
}

/* Terminals of its own: on a shared instance anybody with the number reads and writes the terminals of others. */
int mount_terminals(void) {
  return mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,max=" MAX_TERMINALS);
}

/* The programs of a batch do without: a mount would cost them a twentieth of their time. */
static int wants_terminals(const struct spawn *spec) {
  return !(spec->flags & SPAWN_FRESH_FS) && (spec->kind != KIND_SERVER || spec->flags & SPAWN_FORKABLE);
}

static const char *set_up_mounts(struct job *job) {
  const char *step = NULL;
  /* Landlock leaves a forkable job's /proc writable, and that of an image, see confine.c */
  int read_only = job->view || config.image.on || job->spec.flags & SPAWN_FORKABLE ? MS_RDONLY : 0; /* and where it is so, so must ours be */
  int enters = config.image.on && !job->view;
  if (enters && job->spec.flags & SPAWN_FRESH_FS && (step = image_fresh())) return step;
  /* before it enters an image, since the kernel wants to see another one then */
  if (mount("proc", enters ? IMAGE_ROOT "/proc" : "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | read_only, NULL)) return "mount /proc";
  if (enters && (step = image_enter(&job->spec))) return step;
  if (job->spec.flags & SPAWN_FRESH_FS) {
    char options[96];
    snprintf(options, sizeof options, "size=%llu,nr_inodes=16384,mode=755,uid=%d,gid=%d", (unsigned long long)job->spec.fs_bytes,
             config.image.on ? (int)config.image.uid : GUEST_ID, config.image.on ? (int)config.image.gid : GUEST_ID);
    if (fresh_tmpfs("/workspace", options)) return "mount /workspace";
    snprintf(options, sizeof options, "size=%llu,nr_inodes=16384,mode=1777", (unsigned long long)job->spec.fs_bytes);
    if (fresh_tmpfs("/tmp", options)) return "mount /tmp";
    if (fresh_tmpfs("/dev/shm", options)) return "mount /dev/shm";
  }
  if (wants_terminals(&job->spec) && mount_terminals()) return "mount /dev/pts";
  return NULL;
}

/* Its terminal, on its own instance, so that it finds the name there. We share our table of descriptors. */
static int open_terminal(struct job *job) {
  int unlock = 0, number;
  char path[64];
  if ((job->pty_master = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) return -1;
  if (ioctl(job->pty_master, TIOCSPTLCK, &unlock) || ioctl(job->pty_master, TIOCGPTN, &number)) return -1;
  snprintf(path, sizeof path, "/dev/pts/%d", number);
  if ((job->child_in = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC)) < 0) return -1;
  job->child_out = fcntl(job->child_in, F_DUPFD_CLOEXEC, 3);
  job->child_err = fcntl(job->child_in, F_DUPFD_CLOEXEC, 3);
  return job->child_out < 0 || job->child_err < 0 ? -1 : 0;
}

static int (*become_of)(struct job *);

/* Nothing but the init is left, so the answer need not wait for the kernel to take the namespaces down: we are killed
 * when it is sent. */
static void say_alone(struct job *job) {
  static const uint64_t one = 1;
  if (raw4(SYS_wait4, -1, 0, 0x40000000 | WNOHANG, 0) != -ECHILD) return;
  raw4(SYS_getrusage, RUSAGE_CHILDREN, (long)&job->usage, 0, 0);
  __atomic_store_n(&job->alone, 1, __ATOMIC_SEQ_CST);
  raw4(SYS_write, bell, (long)&one, sizeof one, 0);
  for (;;) raw4(SYS_ppoll, 0, 0, 0, 0);
}

static int init_main(void *arg) {
  struct job *job = arg;
  sigset_t all; /* a handler would run in memory that is not the guest's alone; SIGKILL comes through */
  memset(&all, 0xff, sizeof all); /* musl's sigfillset leaves three out */
  if (sigprocmask(SIG_SETMASK, &all, NULL)) return fail(job, "block signals");
  if (prctl(PR_SET_PDEATHSIG, SIGKILL)) return fail(job, "parent death signal");
  if (!job->view && (config.image.full ? await_ids(job) : map_ids())) return fail(job, "map the user");
  if (job->view && config.image.full && image_root()) return fail(job, "become root of the image");
  if ((job->spec.flags & SPAWN_FORKABLE || job->holds) && !job->view && write_file("/proc/sys/user/max_user_namespaces", "0"))
    return fail(job, "limit user namespaces");
  const char *step = job->holds ? image_view(job->holds, job->source, job->spec.fs_bytes, job->over) : set_up_mounts(job);
  if (step) return fail(job, step);
  if (job->holds) {
    announce(job, 1);
    for (;;) raw4(SYS_wait4, -1, 0, 0x40000000 /* __WALL */, 0), raw4(SYS_ppoll, 0, 0, 0, 0);
  }
  int made_ahead = job->waiting, shares_files = made_ahead || job->spec.flags & SPAWN_PTY;
  if (made_ahead) {
    if ((step = confine_ahead(&job->spec, &job->ruleset))) return fail(job, step);
    job->sealed = 1;
    announce(job, 1);
    while (!__atomic_load_n(&job->go, __ATOMIC_SEQ_CST)) raw4(SYS_futex, (long)&job->go, FUTEX_WAIT, 0, 0);
  }
  if (job->spec.kind != KIND_EXEC) measure_data();
  if (job->spec.flags & SPAWN_PTY && open_terminal(job)) return fail(job, "open a terminal");
  int main_pid = become_of(job);
  if (main_pid < 0) return job->failed_step ? (announce(job, -1), 111) : fail(job, "start the process");
  job->main_pid = main_pid;
  int tell = job->tell;
  if (shares_files) tell = -1; /* to have the descriptors of a command that came later, and to give us its terminal */
  else if (tell > 0) raw4(SYS_close_range, 0, tell - 1, 0, 0);
  if (!shares_files) raw4(SYS_close_range, tell + 1, ~0u, 0, 0);
  announce(job, 1);
  for (;;) {
    int status = 0;
    struct rusage usage;
    long pid = raw4(SYS_wait4, -1, (long)&status, 0x40000000 /* __WALL */, (long)&usage);
    if (pid == -EINTR) continue;
    if (pid < 0) break;
    if ((uint64_t)usage.ru_maxrss > job->watched_peak_kb) job->watched_peak_kb = usage.ru_maxrss;
    if (pid != main_pid) continue;
    job->wstatus = status;
    if (made_ahead) say_alone(job);
    if (tell < 0) break; /* else it stays for the forks that live inside it */
    static const uint64_t one = 1;
    raw4(SYS_write, tell, (long)&one, sizeof one, 0);
  }
  raw4(SYS_exit_group, 0, 0, 0, 0);
  return 0;
}

/* ---- a command: runs in a vfork of the job's init, until execve ---- */

static int use_terminal(const struct job *job) {
  struct winsize size = {.ws_row = job->spec.rows, .ws_col = job->spec.cols};
  return setsid() < 0 || ioctl(job->child_in, TIOCSCTTY, 0) || ioctl(job->child_in, TIOCSWINSZ, &size);
}

/* A script without a first line that names its interpreter is the shell's. */
static void exec_path(struct job *job, char *path) {
  execve(path, job->argv, job->envp);
  if (errno != ENOEXEC) return;
  job->argv[-1] = "sh";
  job->argv[0] = path;
  execve("/bin/sh", job->argv - 1, job->envp);
}

/* Looks a bare name up in the command's own PATH: execvpe would take that of this process. Returns why none was found. */
static int exec_found(struct job *job) {
  char *name = job->argv[0], path[PATH_MAX];
  const char *search = "/bin:/usr/bin";
  int refused = 0;
  if (strchr(name, '/')) return exec_path(job, name), errno;
  for (char **entry = job->envp; *entry; entry++)
    if (!strncmp(*entry, "PATH=", 5)) search = *entry + 5;
  for (const char *end = search; *name; search = end + 1) {
    end = strchrnul(search, ':');
    int length = snprintf(path, sizeof path, "%.*s%s%s", (int)(end - search), search, end > search ? "/" : "./", name);
    if (length < (int)sizeof path) exec_path(job, path);
    if (errno == EACCES) refused = EACCES; /* as a shell does: look on, and remember */
    else if (errno != ENOENT && errno != ENOTDIR) return errno;
    if (!*end) break;
  }
  return refused ? refused : ENOENT;
}

/* Stdio, and this one as 3, closed by execve: the limit on descriptors that comes next is the command's, and ours do not
 * fit into it. */
static int keep_only(int fd) {
  if (fd == 3 ? 0 : fd >= 0 && dup3(fd, 3, O_CLOEXEC) < 0) return -1;
  return syscall(SYS_close_range, fd < 0 ? 3 : 4, ~0u, 0);
}

/* For a conversation: tells the host, by the kernel's word, which process this is, and waits until it is pinned. Nothing of
 * the command has run by then. */
static int introduce(int host) {
  char go;
  ssize_t got;
  if (host < 0) return 0;
  if (send(host, "h", 1, MSG_NOSIGNAL) != 1) return -1;
  while ((got = recv(host, &go, 1, 0)) < 0 && errno == EINTR) {}
  if (!got) errno = ECANCELED; /* the host has dropped it */
  return got == 1 ? 0 : -1;
}

static void exec_child(struct job *job) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  signal(SIGPIPE, SIG_DFL);
  if (job->spec.flags & SPAWN_PTY ? use_terminal(job) : setsid() < 0) job->failed_step = "terminal";
  else if (dup2(job->child_in, 0) < 0 || dup2(job->child_out, 1) < 0 || dup2(job->child_err, 2) < 0) job->failed_step = "stdio";
  else if (slot_join(job, 0)) job->failed_step = "join cgroup";
  else if (image_become(job->sealed)) job->failed_step = "become the image's user";
  else if (chdir(job->cwd)) {
    if (errno == ENOENT || errno == ENOTDIR || errno == EACCES || errno == ELOOP || errno == ENAMETOOLONG) job->exec_errno = errno;
    else job->failed_step = "change the folder"; /* ours to answer for */
  }
  else if (keep_only(job->sealed ? job->ruleset : job->child_extra)) job->failed_step = "close descriptors";
  else job->failed_step = job->sealed ? confine_after(&job->spec, job->slot >= 0, job->ruleset < 0 ? -1 : 3) : confine(&job->spec, job->slot >= 0);
  if (!job->failed_step && !job->exec_errno && !job->sealed && introduce(job->child_extra < 0 ? -1 : 3)) job->failed_step = "introduce the process";
  job->failed_errno = errno;
  if (job->failed_step || job->exec_errno) _exit(127);
  job->started_ns = now_ns();
  job->exec_errno = exec_found(job);
  _exit(127);
}

int job_exec(struct job *job) {
  pid_t pid = vfork();
  if (pid == 0) exec_child(job);
  if (job->failed_step) return -1; /* the child has ended by now and left the reason in our memory */
  return pid;
}

/* ---- Python of an image: as become_guest of zygote.c, and then another program ---- */

static void python_child(struct job *job) {
  int ends[] = {job->child_in, job->child_out, job->child_err, job->child_res, job->child_hand, job->child_extra, job->child_forks};
  int kept = job->child_forks >= 0 ? FORKS_FD : job->child_extra >= 0 ? EXTRA_FD : HAND_FD;
  const char *step = "stdio";
  sigset_t none;
  for (int i = 0; i < 7; i++) /* out of the way of the numbers they will get */
    if (ends[i] >= 0 && (ends[i] = fcntl(ends[i], F_DUPFD_CLOEXEC, 64)) < 0) goto failed;
  for (int i = 0; i < 7; i++)
    if (ends[i] < 0 ? close(i) && errno != EBADF : dup2(ends[i], i) < 0) goto failed;
  step = "join cgroup";
  if (slot_join(job, 0)) goto failed;
  step = "descriptors";
  if (syscall(SYS_close_range, kept + 1, ~0u, 0)) goto failed;
  if (job->spec.kind == KIND_SERVER && fcntl(RESULT_FD, F_SETFD, FD_CLOEXEC)) goto failed; /* only we may use it */
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  signal(SIGPIPE, SIG_DFL);
  if (setsid() < 0) goto failed;
  step = "become the image's user";
  if (image_become(0)) goto failed;
  if (chdir(config.image.cwd) && chdir("/workspace")) goto failed;
  step = "ask before forks";
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || (job->spec.flags & SPAWN_FORKABLE && forks_listen())) goto failed;
  if ((step = confine(&job->spec, job->slot >= 0))) goto failed;
  job->started_ns = now_ns();
  execve(config.image.python[0], config.image.python, config.image.python_env);
  step = "start the image's Python";
failed:
  dprintf(RESULT_FD, "%c%c%c%c%c%c%c%c%s: %s", 255, 255, 255, 255, 255, 255, 255, 255, step, strerror(errno));
  _exit(126);
}

int job_python(struct job *job) {
  pid_t pid = vfork();
  if (pid == 0) python_child(job);
  return pid;
}

/* ---- making and ending jobs ---- */

int view_add(int view, pid_t pid) {
  if (view <= 0 || view >= MAX_VIEWS) return errno = EINVAL, -1;
  int fd = syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0) return -1;
  if (views[view]) close(views[view] - 1);
  views[view] = fd + 1;
  return 0;
}

int view_pidfd(int view) {
  if (view <= 0 || view >= MAX_VIEWS || !views[view]) return errno = ESRCH, -1;
  return views[view] - 1;
}

static int clone_init(struct job *job, int extra, int *pidfd) {
  int flags = CLONE_VM | CLONE_PIDFD | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC | extra | SIGCHLD;
  if (job->waiting || job->holds || job->spec.flags & SPAWN_PTY) flags |= CLONE_FILES;
  if (job->holds) flags |= CLONE_NEWNET;
  if (!job->view) flags |= CLONE_NEWUSER; /* a view has a user namespace of its own, in which no other may be made */
  if (job->spec.flags & SPAWN_FRESH_FS && landlock_abi() < 6) flags |= CLONE_NEWNET;
  pid_t pid = clone(init_main, (char *)job->stack + STACK_BYTES, flags, job, pidfd);
  if (pid < 0 || !config.image.full || job->view) return pid;
  __atomic_store_n(&job->mapped, image_map(pid) ? -errno : 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &job->mapped, FUTEX_WAKE, 1, NULL, NULL, 0);
  return pid;
}

struct joiner {
  struct job *job;
  int pidfd, init, failed;
};

/* Enters the namespaces of a forked view, then makes the job's init as a child of our parent. */
static int join_main(void *arg) {
  struct joiner *joiner = arg;
  int spaces = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET;
  if (syscall(SYS_setns, views[joiner->job->view] - 1, spaces)) joiner->failed = errno;
  else if ((joiner->init = clone_init(joiner->job, CLONE_PARENT, &joiner->pidfd)) < 0) joiner->failed = errno;
  return 0;
}

static int clone_into_view(struct job *job) {
  static char stack[16 << 10] __attribute__((aligned(16)));
  struct joiner joiner = {.job = job, .pidfd = -1, .init = -1};
  if (job->view >= MAX_VIEWS || !views[job->view]) return errno = ESRCH, -1;
  pid_t pid = clone(join_main, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_VFORK | SIGCHLD, &joiner);
  if (pid < 0) return -1;
  int status;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  if (joiner.failed || joiner.init < 0) return errno = joiner.failed ? joiner.failed : EINTR, -1;
  job->pidfd = joiner.pidfd;
  return joiner.init;
}

static int await_ready(struct job *job) {
  struct timespec step = {.tv_sec = 1};
  for (int tries = 0; tries < 20; tries++) {
    int ready = __atomic_load_n(&job->ready, __ATOMIC_SEQ_CST);
    if (ready) return ready;
    struct pollfd ended = {job->pidfd, POLLIN, 0};
    if (job->pidfd >= 0 && poll(&ended, 1, 0) == 1) break;
    syscall(SYS_futex, &job->ready, FUTEX_WAIT, 0, &step, NULL, 0);
  }
  errno = ECHILD;
  return -1;
}

static void reap(pid_t pid) {
  while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR) {}
}

/* Waits for the init's word; when it failed, nothing of the job is left. */
static int settle(struct job *job) {
  if (await_ready(job) > 0) return 0;
  if (!job->failed_step) job->failed_step = "start the job's init", job->failed_errno = errno;
  syscall(SYS_pidfd_send_signal, job->pidfd, SIGKILL, NULL, 0);
  reap(job->init);
  errno = job->failed_errno;
  return -1;
}

int job_go(struct job *job) {
  if (slot_take(job)) return job->failed_step = "cgroup", -1;
  job->ready = 0;
  become_of = job_exec;
  __atomic_store_n(&job->go, 1, __ATOMIC_SEQ_CST);
  syscall(SYS_futex, &job->go, FUTEX_WAKE, 1, NULL, NULL, 0);
  return settle(job);
}

int job_spawn(struct job *job, int (*become)(struct job *)) {
  if (!job->stack) {
    job->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (job->stack == MAP_FAILED) return job->stack = NULL, job->failed_step = "stack", -1;
  }
  job->ready = job->go = job->mapped = job->main_pid = job->exec_errno = job->failed_errno = 0;
  job->wstatus = -1;
  job->failed_step = NULL;
  if (slot_take(job)) return job->failed_step = "cgroup", -1;
  become_of = become;
  job->init = job->view ? clone_into_view(job) : clone_init(job, 0, &job->pidfd);
  if (job->init < 0) return job->failed_step = "clone namespaces", -1;
  return settle(job);
}

void job_kill(struct job *job, uint32_t why) {
  if (job->ended == ENDED_SELF) job->ended = why;
  if (!tree_kill_around(job)) syscall(SYS_pidfd_send_signal, job->pidfd, SIGKILL, NULL, 0);
  else if (job->adopted) job_main_ended(job); /* its init may never tell: the interpreter that it was forked from can stop it */
}

static void shut(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

void job_free(struct job *job) {
  int *owned[] = {&job->in, &job->out, &job->err, &job->res, &job->hand, &job->pidfd, &job->pty_master,
                  &job->child_in, &job->child_out, &job->child_err, &job->child_res, &job->child_hand, &job->child_extra,
                  &job->forks, &job->child_forks, &job->tell, &job->ruleset, &job->listener};
  if (job->spec.flags & SPAWN_FORKABLE) forks_cancel(job, ESRCH, "fork an interpreter that has ended");
  for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) shut(owned[i]);
  struct buffer *buffers[] = {&job->obuf, &job->ebuf, &job->rbuf};
  for (int i = 0; i < 3; i++) vault_give(buffers[i]->data, OUTPUT_BLOCK);
  vault_give(job->request, job->request_len);
  if (job->argv) free(job->argv - 1);
  if (job->slot >= 0) {
    slot_read_hits(job); /* what it met after its report is not the next one's */
    slots[job->slot].busy = 0;
  }
  void *stack = job->stack;
  memset(job, 0, sizeof *job);
  job->stack = stack;
  while (jobs_end > 0 && !jobs[jobs_end - 1].used) jobs_end--;
}
