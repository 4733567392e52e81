/* The loop: takes the host's requests, starts jobs, collects what they write, ends them in time, reports. It trusts
 * the host, which sends well-formed frames, and nothing of what a job writes, which it only counts and carries.
 *
 * One file, however long: it is one thread with one table of jobs, and every function here changes that table. */
#include "harena.h"
#include <limits.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define NO_VAULT "keep what the host sends out of the memory of programs (MADV_DONTFORK)"
#define STEP_BYTES 4096
#define REST_STARTED_NS 3000000ull
#define REST_ANSWERED_NS 200000ull /* the host reads its answer first */

static int control = -1;
static fork_job become_program;
static struct spawn template; /* what the forks ahead were made for */
static uint32_t ahead_wanted;
static int command_wanted; /* keep an init ready for the next command: set by the first one */
static uint32_t command_profile;
static uint64_t next_watch_ns;
static uint64_t rest_until_ns; /* nothing is made ahead before: it would take the processor from what somebody waits for */

int control_fd(void) { return control; }

uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* ---- frames ---- */

static int read_exactly(void *data, size_t len) {
  for (size_t at = 0; at < len;) {
    ssize_t got = read(control, (char *)data + at, len - at);
    if (got > 0) at += got;
    else if (got == 0 || errno != EINTR) return -1;
  }
  return 0;
}

static int receive_head(struct head *head, int *fds, int *nfds) {
  char room[CMSG_SPACE(sizeof(int) * MAX_FDS)];
  struct iovec part = {head, sizeof *head};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  ssize_t got;
  while ((got = recvmsg(control, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
  if (got <= 0) return -1;
  *nfds = 0;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
      *nfds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      memcpy(fds, CMSG_DATA(c), *nfds * sizeof(int));
    }
  if ((size_t)got < sizeof *head && read_exactly((char *)head + got, sizeof *head - got)) return -1;
  return head->magic == MAGIC && head->len <= MAX_FRAME ? 0 : -1;
}

/* parts[0] is the head's place. */
static int send_parts(uint16_t op, uint32_t id, struct iovec *parts, int count, int fd) {
  struct head head = {MAGIC, op, fd >= 0, id, 0};
  char room[CMSG_SPACE(sizeof(int))];
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
  for (int i = 1; i < count; i++) head.len += parts[i].iov_len;
  parts[0] = (struct iovec){&head, sizeof head};
  if (fd >= 0) {
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
  }
  for (size_t left = sizeof head + head.len; left;) {
    ssize_t sent = sendmsg(control, &message, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return shutdown(control, SHUT_RDWR), -1; /* or the host would wait for an answer that never comes */
    left -= sent;
    message.msg_control = NULL;
    message.msg_controllen = 0;
    while (sent > 0 && message.msg_iovlen) {
      struct iovec *part = message.msg_iov;
      size_t step = (size_t)sent < part->iov_len ? (size_t)sent : part->iov_len;
      part->iov_base = (char *)part->iov_base + step;
      part->iov_len -= step;
      sent -= step;
      if (!part->iov_len) message.msg_iov++, message.msg_iovlen--;
    }
  }
  return 0;
}

int send_frame(uint16_t op, uint32_t id, const void *a, size_t alen, const void *b, size_t blen, int fd) {
  struct iovec parts[3] = {{0}, {(void *)a, alen}, {(void *)b, blen}};
  return send_parts(op, id, parts, 3, fd);
}

void send_error(uint32_t id, int number, const char *step) {
  int32_t code = number;
  send_frame(OP_ERROR, id, &code, sizeof code, step, strlen(step), -1);
}

/* ---- what jobs write ---- */

static void record_ended(struct job *job) {
  if (job->spec.records) {
    job->deadline_ns = now_ns() + job->spec.wall_ns;
    if (++job->records == job->spec.records) job->said_end = 1, job->wstatus = 0;
  } else if (job->scan.len == 2 && job->scan.first[0] == 'X') job->said_end = 1, job->wstatus = job->scan.first[1] << 8;
}

/* The result pipe carries the CPU time spent before the hand-over (8 bytes), then records: a length, then bytes. Each
 * whole record of a group restarts the wall clock, for as many records as were announced. A lone program ends with the
 * record X and its exit code. */
static void follow_records(struct job *job, const char *data, size_t len) {
  for (size_t at = 0; at < len && !job->said_end;) {
    uint32_t need = job->based ? sizeof job->scan.part.length : sizeof job->scan.part.base_ns;
    if (job->scan.got < need) {
      job->scan.part.bytes[job->scan.got++] = data[at++];
      if (job->scan.got < need) continue;
      if (!job->based) {
        job->based = 1;
        job->cpu_base_ns = job->scan.part.base_ns;
        job->scan.got = 0;
        continue;
      }
      job->scan.len = job->scan.left = job->scan.part.length;
    } else {
      size_t step = len - at < job->scan.left ? len - at : job->scan.left;
      for (size_t i = 0; i < step && job->scan.len - job->scan.left + i < sizeof job->scan.first; i++)
        job->scan.first[job->scan.len - job->scan.left + i] = data[at + i];
      at += step;
      job->scan.left -= step;
    }
    if (job->scan.left) continue;
    record_ended(job);
    job->scan.got = 0;
  }
}

static void send_output(struct job *job, struct buffer *buffer) {
  uint32_t stream = buffer == &job->obuf ? STREAM_OUT : buffer == &job->ebuf ? STREAM_ERR : STREAM_RESULT;
  if (job->id) send_frame(OP_OUTPUT, job->id, &stream, sizeof stream, buffer->data, buffer->len, -1);
  buffer->len = 0;
}

/* Reads what is there. Output beyond the limit ends the job; the part that fits is kept. */
static void drain(struct job *job, int *fd, struct buffer *buffer) {
  int result = fd == &job->res;
  while (*fd >= 0) {
    if (!buffer->data && !(buffer->data = vault_take(OUTPUT_BLOCK))) return job_kill(job, ENDED_HOST);
    if (buffer->len == OUTPUT_BLOCK) send_output(job, buffer);
    ssize_t got = read(*fd, buffer->data + buffer->len, OUTPUT_BLOCK - buffer->len);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0) job_kill(job, ENDED_HOST); /* what it wrote is lost, and must not pass as all of it */
    if (got <= 0) {
      close(*fd);
      *fd = -1;
      return;
    }
    uint64_t *counted = result ? &job->answered : &job->written;
    uint64_t room = (result ? job->spec.result : job->spec.output) - *counted;
    size_t keep = (uint64_t)got < room ? (size_t)got : room;
    if (result) follow_records(job, buffer->data + buffer->len, keep);
    *counted += keep;
    buffer->len += keep;
    if (keep < (size_t)got) {
      job_kill(job, ENDED_OUTPUT);
      close(*fd);
      *fd = -1;
    }
  }
}

static void drop_request(struct job *job) {
  vault_give(job->request, job->request_len);
  job->request = NULL;
}

/* A program that gets no whole payload would end as if it had done its work. One that has ended already did that itself. */
static void give_up(struct job *job) {
  if (errno != EPIPE) job_kill(job, ENDED_HOST);
  job->give_len = 0;
}

static void hand_over(struct job *job) {
  while (job->give_len) {
    ssize_t put = write(job->hand, job->give, job->give_len);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0 && errno == EAGAIN) return;
    if (put < 0) {
      give_up(job);
      break;
    }
    job->give += put;
    job->give_len -= put;
  }
  job->give = NULL;
  drop_request(job);
  close(job->hand);
  job->hand = -1;
}

/* ---- ends ---- */

static void rest(uint64_t ns) { rest_until_ns = now_ns() + ns; }

static void report(struct job *job, const struct rusage *usage) {
  struct done done = {.ended = job->ended, .wstatus = job->wstatus, .exec_errno = job->exec_errno};
  done.wall_ns = now_ns() - job->started_ns;
  done.cpu_ns = (usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000000ull +
                (usage->ru_utime.tv_usec + usage->ru_stime.tv_usec) * 1000ull;
  if (job->ended && job->watched_cpu_ns > done.cpu_ns) done.cpu_ns = job->watched_cpu_ns; /* the killed are not in usage */
  if (job->cpu_base_ns == UINT64_MAX && job->rbuf.len < OUTPUT_BLOCK) { /* it could not be confined, and no guest code has run: see become_guest */
    job->rbuf.data[job->rbuf.len] = 0;
    return send_error(job->id, EPERM, job->rbuf.data + 8);
  }
  done.cpu_ns = done.cpu_ns > job->cpu_base_ns ? done.cpu_ns - job->cpu_base_ns : 0;
  done.peak_kb = job->watched_peak_kb;
  slot_read_hits(job);
  done.hits = job->hits;
  done.written = job->written;
  done.records = job->records;
  done.out_len = job->obuf.len;
  done.err_len = job->ebuf.len;
  done.res_len = job->rbuf.len;
  struct iovec parts[5] = {{0},
                           {&done, sizeof done},
                           {job->obuf.data, job->obuf.len},
                           {job->ebuf.data, job->ebuf.len},
                           {job->rbuf.data, job->rbuf.len}};
  send_parts(OP_DONE, job->id, parts, 5, -1);
  if (!(job->spec.flags & SPAWN_BATCH)) rest(REST_ANSWERED_NS);
}

static void finish(struct job *job) {
  struct rusage usage;
  memset(&usage, 0, sizeof usage);
  drain(job, &job->out, &job->obuf);
  drain(job, &job->err, &job->ebuf);
  drain(job, &job->res, &job->rbuf);
  int status = 0, said = job->said_end, as_said = job->wstatus;
  while (!job->adopted && wait4(job->init, &status, __WALL, &usage) < 0 && errno == EINTR) {} /* else: not our child */
  if (job->spec.kind == KIND_TRUSTED) job->wstatus = status;
  if (said && job->wstatus == -1) job->wstatus = as_said;
  if (job->id) report(job, &usage);
  struct job *above = job->above;
  job_free(job);
  if (above) forks_ended(above);
}

/* The first process of a job, as this pid namespace numbers it. */
static pid_t main_process(const struct job *job) {
  char path[64], text[64];
  if (job->spec.kind == KIND_TRUSTED) return job->init;
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)job->init, (int)job->init);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  return atoi(text);
}

static uint64_t peak_of(pid_t pid) {
  char path[64], text[4096], *at;
  snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  return (at = strstr(text, "\nVmHWM:")) ? strtoull(at + 7, NULL, 10) : 0;
}

/* The host reads its answer first: what we do now would keep it from the processor. In a batch it has others to read. */
static void end_answered(struct job *job) {
  job->id = 0;
  if (job->spec.flags & SPAWN_BATCH) return job_kill(job, ENDED_HOST);
  job->condemned = 1;
  job->deadline_ns = now_ns() + REST_ANSWERED_NS;
}

static clockid_t process_clock(pid_t pid) { return (clockid_t)(~(unsigned)pid << 3 | 2); } /* as clock_getcpuclockid makes it */

/* A program that says it has ended waits to be killed. The answer need not wait for that, nor for the kernel to take its
 * namespaces down; how it ended is its own word in any case. */
static void end_early(struct job *job) {
  struct timespec used;
  struct rusage usage;
  pid_t pid = job->main_outside ? job->main_outside : main_process(job);
  memset(&usage, 0, sizeof usage);
  if (pid <= 0 || clock_gettime(process_clock(pid), &used)) return; /* it has not waited: finish() will see it */
  usage.ru_utime.tv_sec = used.tv_sec;
  usage.ru_utime.tv_usec = used.tv_nsec / 1000;
  uint64_t reaped = reaped_cpu_ns(pid);
  usage.ru_stime.tv_sec = reaped / 1000000000;
  usage.ru_stime.tv_usec = reaped / 1000 % 1000000;
  job->watched_peak_kb = peak_of(pid);
  drain(job, &job->out, &job->obuf);
  drain(job, &job->err, &job->ebuf);
  if (job->ended) return; /* that was too much output */
  report(job, &usage);
  end_answered(job);
}

static void end_alone(void) {
  uint64_t rung;
  if (read(bell, &rung, sizeof rung) < 0) return;
  for (int i = 0; i < jobs_end; i++) {
    struct job *job = &jobs[i];
    if (!job->used || !job->alone || !job->id || job->ended) continue;
    drain(job, &job->out, &job->obuf);
    drain(job, &job->err, &job->ebuf);
    if (job->ended) continue; /* that was too much output */
    report(job, &job->usage);
    end_answered(job);
  }
}

void job_main_ended(struct job *job) {
  struct rusage usage;
  memset(&usage, 0, sizeof usage);
  drain(job, &job->res, &job->rbuf);
  if (job->id) report(job, &usage);
  job->id = 0;
  job->ended = ENDED_HOST;
  if (job->tell >= 0) close(job->tell);
  job->tell = -1;
  forks_cancel(job, ESRCH, "fork an interpreter that has ended");
  tree_kill_around(job);
}

/* ---- starts ---- */

struct job *job_new(uint32_t id, const struct spawn *spec) {
  for (int i = 0; i < MAX_JOBS; i++) {
    struct job *job = &jobs[i];
    if (job->used) continue;
    if (i >= jobs_end) jobs_end = i + 1;
    job->used = 1;
    job->id = id;
    job->spec = *spec;
    job->view = spec->view;
    job->slot = job->pidfd = job->pty_master = -1;
    job->in = job->out = job->err = job->res = job->hand = -1;
    job->child_in = job->child_out = job->child_err = job->child_res = job->child_hand = job->child_extra = -1;
    job->forks = job->child_forks = job->tell = job->ruleset = job->listener = -1;
    return job;
  }
  return NULL;
}

struct job *job_by_id(uint32_t id) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && jobs[i].id == id) return &jobs[i];
  return NULL;
}

static int pipe_to_us(int *ours, int *theirs) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return -1;
  *ours = ends[0];
  *theirs = ends[1];
  return fcntl(*ours, F_SETFL, O_NONBLOCK);
}

static int pipe_to_them(int *ours, int *theirs) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC)) return -1;
  *ours = ends[1];
  *theirs = ends[0];
  return fcntl(*ours, F_SETFL, O_NONBLOCK);
}

static int stdin_with(const char *data, size_t len) {
  if (!len) return open("/dev/null", O_RDONLY | O_CLOEXEC);
  int fd = memfd_create("stdin", MFD_CLOEXEC);
  for (size_t at = 0; fd >= 0 && at < len;) {
    ssize_t put = write(fd, data + at, len - at);
    if (put < 0) return close(fd), -1;
    at += put;
  }
  if (fd >= 0) lseek(fd, 0, SEEK_SET);
  return fd;
}

static int set_up_stdio(struct job *job, const char *input, int *fds, int nfds) {
  const struct spawn *spec = &job->spec;
  if (spec->flags & SPAWN_PTY) return 0; /* the job's init opens it */
  if (spec->flags & SPAWN_CAPTURE) {
    if (pipe_to_us(&job->out, &job->child_out) || pipe_to_us(&job->err, &job->child_err)) return -1;
    if ((job->child_in = stdin_with(input, spec->stdin_len)) < 0) return -1;
  } else {
    if (nfds < 3) return errno = EINVAL, -1;
    job->child_in = fds[0], job->child_out = fds[1], job->child_err = fds[2];
    fds[0] = fds[1] = fds[2] = -1;
    if (nfds > 3) job->child_extra = fds[3], fds[3] = -1;
  }
  if (spec->flags & SPAWN_FORKABLE) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) return -1;
    job->forks = ends[0], job->child_forks = ends[1];
    if (setsockopt(job->forks, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int))) return -1;
    if ((job->tell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) return -1;
  }
  if (spec->kind != KIND_PROGRAM && spec->kind != KIND_SERVER) return 0;
  if (spec->kind == KIND_SERVER) job->spec.result = STEP_BYTES; /* to say that it could not be confined: see become_guest */
  if (pipe_to_us(&job->res, &job->child_res)) return -1;
  return pipe_to_them(&job->hand, &job->child_hand);
}

/* Makes the lists of words; they and the working folder stay where they are in the request. */
static int split_strings(struct job *job, char *at) {
  const struct spawn *spec = &job->spec;
  char *end = at + spec->strings_len;
  uint64_t words = (uint64_t)spec->argc + spec->envc;
  if ((spec->strings_len && end[-1]) || (spec->cwd_len && end[spec->cwd_len - 1]) || words > spec->strings_len) return errno = EPROTO, -1;
  char **room = calloc(words + 3, sizeof(char *));
  if (!room) return -1;
  job->argv = room + 1; /* before it, a place for the interpreter of a script: see exec_path */
  job->envp = job->argv + spec->argc + 1;
  job->cwd = spec->cwd_len ? end : "";
  for (uint32_t i = 0; i < words; i++, at += strlen(at) + 1) {
    if (at >= end) return errno = EPROTO, -1;
    *(i < spec->argc ? &job->argv[i] : &job->envp[i - spec->argc]) = at;
  }
  return spec->argc || spec->kind == KIND_PROGRAM || spec->kind == KIND_SERVER ? 0 : (errno = EPROTO, -1);
}

static void close_child_ends(struct job *job) {
  int *ends[] = {&job->child_in,  &job->child_out,   &job->child_err,  &job->child_res,
                 &job->child_hand, &job->child_extra, &job->child_forks};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    if (*ends[i] >= 0) close(*ends[i]);
    *ends[i] = -1;
  }
}

/* Our own code (the zygote): no namespaces, no limits, the given descriptors as 3, 4, … */
static void trusted_child(struct job *job, const int *fds, int count) {
  int high[MAX_FDS];
  if (sched_setaffinity(0, sizeof config.all_cpus, &config.all_cpus)) _exit(127);
  for (int i = 0; i < count; i++)
    if ((high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3 + count)) < 0) _exit(127); /* out of the way of the numbers they will get */
  for (int i = 0; i < count; i++)
    if (dup2(high[i], 3 + i) < 0) _exit(127);
  syscall(SYS_close_range, 3 + count, ~0u, 0);
  if (config.image.full && keep_across_exec(IDS_KEPT)) _exit(127);
  execve(job->argv[0], job->argv, job->envp);
  job->exec_errno = errno;
  _exit(127);
}

static int spawn_trusted(struct job *job, const int *fds, int nfds) {
  pid_t pid = vfork();
  if (pid == 0) trusted_child(job, fds, nfds);
  if (pid < 0) return job->failed_step = "vfork", -1;
  job->init = pid;
  job->pidfd = syscall(SYS_pidfd_open, pid, 0);
  return job->pidfd < 0 ? (job->failed_step = "pidfd_open", -1) : 0;
}

static int start(struct job *job) {
  job->above = job->view ? view_owner(job->view) : NULL;
  return job_spawn(job, job->spec.kind == KIND_EXEC ? job_exec : become_program);
}

static int same_template(const struct spawn *a, const struct spawn *b) {
  return a->kind == b->kind && a->flags == b->flags && a->memory == b->memory && a->processes == b->processes &&
         a->nofile == b->nofile && a->profile == b->profile && a->view == b->view && a->fs_bytes == b->fs_bytes &&
         (a->cpu_ns + 999999999) / 1000000000 == (b->cpu_ns + 999999999) / 1000000000;
}

static struct job *take_ahead(uint32_t id, const struct spawn *spec) {
  if (!same_template(spec, &template)) return NULL;
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && !jobs[i].id && !jobs[i].ended && jobs[i].hand >= 0) {
      jobs[i].id = id;
      jobs[i].spec = *spec;
      return &jobs[i];
    }
  return NULL;
}

static void drop_ahead(void) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && !jobs[i].id && !jobs[i].ended && !jobs[i].waiting && jobs[i].hand >= 0) job_kill(&jobs[i], ENDED_HOST);
}

static uint32_t count_ahead(void) {
  uint32_t count = 0;
  for (int i = 0; i < jobs_end; i++) count += jobs[i].used && jobs[i].hand >= 0 && !jobs[i].id && !jobs[i].ended;
  return count;
}

static int free_jobs(void) {
  int count = MAX_JOBS - jobs_end;
  for (int i = 0; i < jobs_end; i++) count += !jobs[i].used;
  return count;
}

static void fork_one_ahead(void) {
  struct job *job = job_new(0, &template);
  if (!job) return;
  if (set_up_stdio(job, NULL, NULL, 0) || start(job)) {
    ahead_wanted = 0; /* the next request will meet the same failure and report it */
    job_free(job);
    return;
  }
  close_child_ends(job);
  job->main_outside = main_process(job);
}

/* An init for the next command, with its namespaces, cgroup and mounts. */
static void prepare_command(void) {
  struct spawn spec = {.kind = KIND_EXEC, .memory = 512 << 20, .processes = 50, .profile = command_profile}; /* for the watch */
  struct job *job = job_new(0, &spec);
  if (!job) return;
  job->waiting = 1;
  if (job_spawn(job, job_exec)) {
    command_wanted = 0;
    job_free(job);
  }
}

static struct job *take_waiting(uint32_t id, const struct spawn *spec) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && jobs[i].waiting && !jobs[i].ended) {
      if (jobs[i].spec.profile != spec->profile) return job_kill(&jobs[i], ENDED_HOST), NULL;
      jobs[i].waiting = jobs[i].hits = 0;
      jobs[i].id = id;
      jobs[i].spec = *spec;
      return &jobs[i];
    }
  return NULL;
}

static int command_waits(void) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && jobs[i].waiting) return 1;
  return 0;
}

static void spawn_failed(struct job *job, uint32_t id) {
  int number = errno;
  send_error(id, number, job && job->failed_step ? (const char *)job->failed_step : "start the job");
  if (job) job_free(job);
}

/* The job's from now on: *kept is where the loop looks for what it still has to give back. */
static void keep_request(struct job *job, const struct head *head, char **kept) {
  if (!*kept) return;
  job->request = *kept;
  job->request_len = head->len + 1;
  *kept = NULL;
}

/* Does anything run on the files of a view that could change them? */
static int runs_in(int view) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && jobs[i].view == view && !jobs[i].holds && !jobs[i].waiting && !(jobs[i].condemned && jobs[i].alone) && jobs[i].spec.kind != KIND_TRUSTED &&
        !(jobs[i].spec.flags & SPAWN_FRESH_FS))
      return 1;
  return 0;
}

/* KIND_VIEW: another view of a box from an image, which its job's init holds: with the files of spec.view, and the number
 * that spec.ahead gives. With spec.records it takes over: what runs in spec.view from now on runs in the new one. */
static void do_view(const struct head *head, const struct spawn *spec) {
  int source = image_view_of(spec->view), over = spec->records != 0;
  const char *step = over && runs_in(source) ? (errno = EBUSY, "freeze files that are in use") : image_prepare(spec->ahead, source, over);
  if (step) return send_error(head->id, errno, step);
  struct job *job = job_new(head->id, spec);
  if (!job) return image_forget(spec->ahead), errno = EAGAIN, spawn_failed(NULL, head->id);
  job->holds = spec->ahead;
  job->source = source;
  job->over = over;
  job->view = 0;
  if (job_spawn(job, NULL) || view_add(job->holds, job->init)) {
    int number = errno;
    image_forget(spec->ahead);
    return errno = number, spawn_failed(job, head->id);
  }
  job->started_ns = now_ns();
  uint32_t pid = job->init;
  if (over) {
    image_take_over(spec->ahead, source);
    for (int i = 0; !source && i < jobs_end; i++)
      if (jobs[i].used && jobs[i].waiting) job_kill(&jobs[i], ENDED_HOST);
    if (!source) command_wanted = 0;
  }
  send_frame(OP_STARTED, head->id, &pid, sizeof pid, NULL, 0, -1);
  job->id = 0; /* nobody waits for its end */
}

/* Takes the body of the request along with the job, if it keeps it: *kept. */
static void do_spawn(const struct head *head, char *body, int *fds, int nfds, char **kept) {
  struct spawn spec;
  if (head->len < sizeof spec) return send_error(head->id, EPROTO, "short request");
  memcpy(&spec, body, sizeof spec);
  body += sizeof spec;
  uint64_t need = sizeof spec + (uint64_t)spec.strings_len + spec.cwd_len + spec.stdin_len + spec.payload_len;
  int forked = spec.kind == KIND_PROGRAM || spec.kind == KIND_SERVER, executed = spec.kind == KIND_EXEC || spec.kind == KIND_TRUSTED, held = spec.kind == KIND_VIEW;
  if (need != head->len || spec.profile >= PROFILES || spec.view >= MAX_VIEWS || !(executed ? spec.argc > 0 : held || (forked && become_program)) ||
      (uint64_t)spec.argc + spec.envc > spec.strings_len) /* each has its NUL */
    return send_error(head->id, EPROTO, "malformed request");
  if (spec.kind == KIND_PROGRAM && spec.ahead) {
    if (!same_template(&spec, &template)) drop_ahead();
    template = spec;
    template.wall_ns = template.records = template.stdin_len = template.payload_len = 0;
    ahead_wanted = spec.ahead;
  }
  if (spec.kind == KIND_VIEW) return config.image.on ? do_view(head, &spec) : send_error(head->id, EPROTO, "malformed request");
  if (config.image.on) spec.view = spec.flags & SPAWN_FRESH_FS ? 0 : image_view_of(spec.view); /* fresh files are no view's */
  struct job *job = spec.kind == KIND_PROGRAM ? take_ahead(head->id, &spec) : NULL;
  if (spec.kind == KIND_EXEC && !spec.view && !(spec.flags & SPAWN_FRESH_FS)) { /* the one that waits has the box's files */
    command_wanted = 1;
    command_profile = spec.profile;
    if ((job = take_waiting(head->id, &spec))) {
      keep_request(job, head, kept);
      if (split_strings(job, body) || set_up_stdio(job, body + spec.strings_len + spec.cwd_len, fds, nfds) || job_go(job))
        return spawn_failed(job, head->id);
      close_child_ends(job);
    }
  }
  if (!job) {
    if (!(job = job_new(head->id, &spec))) return errno = EAGAIN, spawn_failed(NULL, head->id);
    keep_request(job, head, kept);
    if (split_strings(job, body)) return spawn_failed(job, head->id);
    int failed = spec.kind == KIND_TRUSTED
                     ? spawn_trusted(job, fds, nfds)
                     : set_up_stdio(job, body + spec.strings_len + spec.cwd_len, fds, nfds) || start(job);
    if (failed) return spawn_failed(job, head->id);
    close_child_ends(job);
  }
  if (job->hand < 0) drop_request(job); /* a command has its words and its stdin by now */
  if (!job->started_ns) job->started_ns = now_ns(); /* a command knows when it was started */
  /* With a second processor the next command's init is made while this one runs: it is ready when the next one comes. */
  int beside = spec.kind == KIND_EXEC && CPU_COUNT(&config.all_cpus) > 1;
  if (!(spec.flags & SPAWN_BATCH)) rest(beside ? 0 : REST_STARTED_NS);
  if (spec.wall_ns) job->deadline_ns = job->started_ns + spec.wall_ns;
  if (job->hand >= 0) {
    uint32_t len = spec.payload_len;
    keep_request(job, head, kept);
    job->give = body + spec.strings_len + spec.cwd_len + spec.stdin_len;
    job->give_len = len;
    if (write(job->hand, &len, sizeof len) < 0) give_up(job); /* the pipe is empty, and takes it */
    hand_over(job);
  }
  if (spec.flags & SPAWN_NOTIFY) {
    uint32_t pid = job->init;
    send_frame(OP_STARTED, head->id, &pid, sizeof pid, NULL, 0, job->pty_master);
    if (job->pty_master >= 0) close(job->pty_master), job->pty_master = -1;
  }
}

static void do_kill(const struct head *head, const char *body) {
  uint32_t words[2];
  if (head->len != sizeof words) return send_error(head->id, EPROTO, "malformed request");
  memcpy(words, body, sizeof words);
  struct job *job = job_by_id(words[0]);
  if (!job) return send_error(head->id, ESRCH, "no such execution");
  if (!words[1]) job_kill(job, ENDED_HOST);
  else {
    pid_t pid = main_process(job);
    if (pid <= 0 || kill(pid, words[1])) return send_error(head->id, pid <= 0 ? ESRCH : errno, "signal");
  }
  send_frame(OP_PONG, head->id, NULL, 0, NULL, 0, -1);
}

/* CPU time of the job so far (of its first process exactly, of the others by the tick), the first one's peak, and
 * the limits that were hit since this was last asked. */
static void do_usage(const struct head *head, const char *body) {
  uint32_t id;
  if (head->len != sizeof id) return send_error(head->id, EPROTO, "malformed request");
  memcpy(&id, body, sizeof id);
  struct job *job = job_by_id(id);
  pid_t pid = job ? main_process(job) : 0;
  struct timespec used;
  if (pid <= 0 || clock_gettime(process_clock(pid), &used)) return send_error(head->id, ESRCH, "no such execution");
  watch_jobs();
  uint64_t own = used.tv_sec * 1000000000ull + used.tv_nsec;
  slot_read_hits(job);
  uint64_t words[3] = {own > job->watched_cpu_ns ? own : job->watched_cpu_ns, peak_of(pid), job->hits};
  job->hits = 0;
  send_frame(OP_PONG, head->id, words, sizeof words, NULL, 0, -1);
}

static void do_socket(const struct head *head, const char *body) {
  struct socket_request request;
  uint32_t none = 0;
  if (head->len != sizeof request) return send_error(head->id, EPROTO, "malformed request");
  memcpy(&request, body, sizeof request);
  int fd = make_socket(&request);
  if (fd < 0) return send_error(head->id, errno, "make a socket");
  send_frame(OP_STARTED, head->id, &none, sizeof none, NULL, 0, fd);
  close(fd);
}

static void replace_fd(int *ours, int *given) {
  if (*ours >= 0) close(*ours);
  *ours = *given;
  *given = -1;
}

/* A filter for each profile (a length and bytes each), then the paths that stay writable, then what image.c reads, if the
 * root is an image; descriptors: the cgroup folders. */
static int do_config(const struct head *head, const char *body, int *fds, int nfds) {
  size_t at = 0;
  for (int i = 0; i < PROFILES; i++) {
    uint32_t len;
    if (head->len - at < sizeof len) return -1;
    memcpy(&len, body + at, sizeof len);
    at += sizeof len;
    if (head->len - at < len || len % 8 || len / 8 > 4096) return -1;
    free(config.filter[i].code);
    if (!(config.filter[i].code = malloc(len + 1))) return config.filter[i].count = 0, -1;
    memcpy(config.filter[i].code, body + at, len);
    config.filter[i].count = len / 8;
    at += len;
  }
  if (head->len - at < 2 || body[head->len - 1]) return -1;
  int kinds = body[at++]; /* 0: no cgroups, 1: version 1 (memory, pids), 2: version 2 */
  size_t paths = 0;
  while (at + paths < head->len && body[at + paths]) paths += strlen(body + at + paths) + 1;
  if (++paths > sizeof config.write_paths || at + paths > head->len) return -1;
  memcpy(config.write_paths, body + at, paths);
  if (head->len - at > paths && image_config(body + at + paths, head->len - at - paths)) return -1;
  if (!become_program && config.image.python) become_program = job_python;
  if (kinds == 1 && nfds == 2) replace_fd(&config.cgroup_memory, &fds[0]), replace_fd(&config.cgroup_pids, &fds[1]);
  if (kinds == 2 && nfds == 1) replace_fd(&config.cgroup_v2, &fds[0]);
  return send_frame(OP_PONG, head->id, NULL, 0, NULL, 0, -1);
}

static int handle_request(void) {
  struct head head;
  int fds[MAX_FDS], nfds = 0;
  if (receive_head(&head, fds, &nfds)) return -1;
  char *body = vault_take(head.len + 1);
  if (!body) return send_error(head.id, errno, NO_VAULT), -1;
  if (read_exactly(body, head.len)) return -1;
  if (head.op == OP_PING) send_frame(OP_PONG, head.id, body, head.len, NULL, 0, -1);
  else if (head.op == OP_SPAWN) do_spawn(&head, body, fds, nfds, &body);
  else if (head.op == OP_KILL) do_kill(&head, body);
  else if (head.op == OP_USAGE) do_usage(&head, body);
  else if (head.op == OP_SOCKET) do_socket(&head, body);
  else if (head.op == OP_CONFIG) {
    if (do_config(&head, body, fds, nfds)) send_error(head.id, EPROTO, "malformed configuration");
  } else if (head.op == OP_VIEW && head.len == 8) {
    uint32_t words[2];
    memcpy(words, body, sizeof words);
    if (words[1] ? view_add(words[0], words[1]) : view_close(words[0])) send_error(head.id, errno, "no such view");
    else send_frame(OP_PONG, head.id, NULL, 0, NULL, 0, -1);
  } else if (head.op == OP_CHANGES && !head.len) {
    int changes = config.image.on ? open("/.harena/upper/files", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : (errno = EINVAL, -1);
    if (changes < 0) send_error(head.id, errno, "open the changed files");
    else send_frame(OP_STARTED, head.id, NULL, 0, NULL, 0, changes);
    if (changes >= 0) close(changes);
  } else if (forks_command(&head, body, fds, nfds)) send_error(head.id, ENOSYS, "unknown request");
  for (int i = 0; i < nfds; i++)
    if (fds[i] >= 0) close(fds[i]);
  vault_give(body, head.len + 1);
  return 0;
}

/* ---- the loop ---- */

static int jobs_to_watch(uint64_t now) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && jobs[i].id && jobs[i].spec.kind != KIND_TRUSTED && now - jobs[i].started_ns > WATCH_EVERY_NS / 4) return 1;
  return 0;
}

static uint64_t next_event_ns(int make_ahead) {
  uint64_t next = forks_next_ns();
  int running = 0;
  if (make_ahead && rest_until_ns < next) next = rest_until_ns;
  for (int i = 0; i < jobs_end; i++) {
    struct job *job = &jobs[i];
    if (!job->used || (!job->id && !job->condemned) || job->ended) continue;
    if (job->deadline_ns && job->deadline_ns < next) next = job->deadline_ns;
    running |= job->spec.kind != KIND_TRUSTED;
  }
  return running && next_watch_ns < next ? next_watch_ns : next;
}

static int wait_for_events(struct pollfd *set, int count, uint64_t until_ns) {
  uint64_t now = now_ns(), left = until_ns > now ? until_ns - now : 0;
  struct timespec wait = {left / 1000000000, left % 1000000000};
  return ppoll(set, count, until_ns == UINT64_MAX ? NULL : &wait, NULL);
}

static int is_late(const struct job *job, uint64_t now) {
  return job->used && (job->id || job->condemned) && !job->ended && job->deadline_ns && now >= job->deadline_ns;
}

static void enforce_time(uint64_t now) {
  int late = 0;
  for (int i = 0; i < jobs_end; i++) {
    if (jobs[i].condemned && is_late(&jobs[i], now)) job_kill(&jobs[i], ENDED_HOST);
    late |= is_late(&jobs[i], now);
  }
  if (late) watch_jobs(); /* what they used so far: the kernel does not tell of the killed */
  for (int i = 0; late && i < jobs_end; i++)
    if (is_late(&jobs[i], now)) job_kill(&jobs[i], ENDED_WALL);
  forks_enforce_time(now);
  if (now < next_watch_ns) return;
  next_watch_ns = now + (jobs_to_watch(now) ? watch_jobs() : WATCH_EVERY_NS);
}

struct place {
  struct job *job;
  int which;
};

static int add(struct pollfd *set, struct place *places, int count, struct job *job, int fd, int which, short events) {
  if (fd < 0) return count;
  set[count] = (struct pollfd){fd, events, 0};
  places[count] = (struct place){job, which};
  return count + 1;
}

static void react(const struct place *place) {
  struct job *job = place->job;
  if (place->which == 8) return end_alone();
  if (!job->used) return;
  if (place->which == 1) drain(job, &job->out, &job->obuf);
  if (place->which == 2) drain(job, &job->err, &job->ebuf);
  if (place->which == 3) {
    drain(job, &job->res, &job->rbuf);
    if (job->said_end && job->id && !job->ended) end_early(job);
  }
  if (place->which == 4) hand_over(job);
  if (place->which == 6) forks_hello(job);
  if (place->which == 7) job->adopted ? forks_farewell(job) : job_main_ended(job);
  if (place->which == 9) forks_asked(job);
  if (place->which == 5) finish(job);
}

/* Without memory that forks do not inherit there is no box: the host's first request is told so. */
static int refuse(void) {
  int number = errno, fds[MAX_FDS], nfds;
  struct head head;
  if (!receive_head(&head, fds, &nfds)) send_error(head.id, number, NO_VAULT);
  return -1;
}

/* Asks for short turns on the processor, which come sooner: what ends a guest at its limits and answers the host must not
 * wait behind guests. The share of the processor stays the same, and guests start with turns of the usual length. Kernels
 * before 6.12 ignore it. */
static void take_short_turns(void) {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } turns = {0};
  if (syscall(SYS_sched_getattr, 0, &turns, sizeof turns, 0) || turns.policy != SCHED_OTHER) return;
  turns.size = sizeof turns;
  turns.flags |= 1; /* SCHED_FLAG_RESET_ON_FORK */
  turns.runtime = 100000;
  syscall(SYS_sched_setattr, 0, &turns, 0);
}

int serve(int control_socket, fork_job become) {
  static struct pollfd set[MAX_JOBS * 8 + 2];
  static struct place places[MAX_JOBS * 8 + 2];
  control = control_socket;
  become_program = become;
  if (!(jobs = vault_take(MAX_JOBS * sizeof *jobs))) return refuse(); /* zeros: nothing was taken and given back before */
  take_short_turns();
  if ((bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0) return -1;
  for (;;) {
    int refill = become_program && count_ahead() < ahead_wanted && free_jobs() > 8;
    int count = add(set, places, 0, NULL, control, 0, POLLIN);
    count = add(set, places, count, NULL, bell, 8, POLLIN);
    for (int i = 0; i < jobs_end; i++) {
      struct job *job = &jobs[i];
      if (!job->used) continue;
      count = add(set, places, count, job, job->out, 1, POLLIN);
      count = add(set, places, count, job, job->err, 2, POLLIN);
      count = add(set, places, count, job, job->res, 3, POLLIN);
      if (job->give) count = add(set, places, count, job, job->hand, 4, POLLOUT);
      count = add(set, places, count, job, job->forks, 6, POLLIN);
      count = add(set, places, count, job, job->listener, 9, POLLIN);
      count = add(set, places, count, job, job->tell, 7, POLLIN);
      count = add(set, places, count, job, job->pidfd, 5, POLLIN);
    }
    int prepare = command_wanted && !command_waits() && free_jobs() > 8;
    int ready = wait_for_events(set, count, next_event_ns(refill || prepare));
    if (ready < 0 && errno != EINTR) return -1;
    if (ready == 0 && now_ns() >= rest_until_ns) {
      if (refill) fork_one_ahead();
      if (prepare) prepare_command();
    }
    enforce_time(now_ns());
    if (ready <= 0) continue;
    for (int i = 1; i < count; i++)
      if (set[i].revents) react(&places[i]);
    if (set[0].revents && handle_request()) return 0; /* the host is gone */
  }
}
