/* Forks of a live interpreter. The interpreter clones itself into new namespaces, which only it can do with its memory;
 * it has no right to do so except in the moment in which the host asked for it: its user namespace may have no others
 * in it (max_user_namespaces 0), and we lift that until the forks the host announced have said hello. We, not the
 * guest, then set the fork up from outside: its user, its own copy of the files, its /proc, its loopback. */
#include "harena.h"
#include <dirent.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define HELPER_STACK (256 << 10)

struct pending { /* a fork the host has announced: where its answers go */
  int used, job, view, fds[3];
  uint32_t id;
};
static struct pending pending[MAX_VIEWS];

struct helper {
  int target;   /* pidfd of the fork; -1: only the limits are wanted */
  int parent;   /* pidfd of the init of the job it came from */
  pid_t pid;
  uint64_t fs_bytes;
  const char *allowed;
  const char *volatile failed;
  volatile int number;
};

static int put(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t put = write(fd, text, strlen(text));
  int number = errno;
  close(fd);
  errno = number;
  return put < 0 ? -1 : 0;
}

static int enter(int pidfd, int spaces) { return syscall(SYS_setns, pidfd, spaces); }

/* ---- copying the files ---- */

static int copy_file(int from, int to, const char *name, const struct stat *info) {
  int in = openat(from, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (in < 0) return -1;
  int out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600), failed = out < 0;
  for (off_t at = 0, end; !failed && (at = lseek(in, at, SEEK_DATA)) >= 0;) { /* holes stay holes */
    if ((end = lseek(in, at, SEEK_HOLE)) < 0 || lseek(out, at, SEEK_SET) < 0) failed = 1;
    for (ssize_t sent = 1; !failed && at < end && sent; failed = sent < 0) sent = sendfile(out, in, &at, end - at);
    if (!failed && at < end) break; /* it was cut meanwhile */
  }
  failed = failed || ftruncate(out, info->st_size);
  struct timespec times[2] = {info->st_atim, info->st_mtim};
  failed = failed || fchmod(out, info->st_mode & 01777) || futimens(out, times);
  int number = errno;
  if (out >= 0) close(out);
  close(in);
  errno = number;
  return failed ? -1 : 0;
}

/* Names and targets of links, in the vault: they are not for other views of the box, whose programs are forks of us. */
struct listing {
  char entries[32 << 10], target[4096];
};

static int copy_entry(int from, int to, const char *name, char *target, int depth);

/* Takes both descriptors. Sockets, pipes and devices stay behind. */
static int copy_tree(int from, int to, int depth) {
  struct listing *listing = depth > 200 ? (errno = ELOOP, NULL) : vault_take(sizeof *listing);
  long got = 0;
  int failed = !listing;
  while (!failed && (got = syscall(SYS_getdents64, from, listing->entries, sizeof listing->entries)) > 0)
    for (long at = 0; !failed && at < got;) {
      struct dirent64 *entry = (struct dirent64 *)(listing->entries + at);
      at += entry->d_reclen;
      if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
        failed = copy_entry(from, to, entry->d_name, listing->target, depth);
    }
  int number = errno;
  vault_give(listing, sizeof *listing);
  close(from);
  close(to);
  errno = number;
  return failed || got < 0 ? -1 : 0;
}

static int copy_entry(int from, int to, const char *name, char *target, int depth) {
  struct stat info;
  if (fstatat(from, name, &info, AT_SYMLINK_NOFOLLOW)) return 0; /* gone meanwhile */
  struct timespec times[2] = {info.st_atim, info.st_mtim};
  if (S_ISREG(info.st_mode)) return copy_file(from, to, name, &info);
  if (S_ISLNK(info.st_mode)) {
    ssize_t len = readlinkat(from, name, target, sizeof ((struct listing *)0)->target - 1);
    if (len < 0) return 0;
    target[len] = 0;
    return symlinkat(target, to, name) || utimensat(to, name, times, AT_SYMLINK_NOFOLLOW);
  }
  if (!S_ISDIR(info.st_mode)) return 0;
  if (mkdirat(to, name, 0700)) return -1;
  int a = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int b = openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (a < 0 || b < 0) {
    int number = errno;
    if (a >= 0) close(a);
    if (b >= 0) close(b);
    return errno = number, -1;
  }
  return copy_tree(a, b, depth + 1) || fchmodat(to, name, info.st_mode & 01777, 0) || utimensat(to, name, times, 0);
}

static int own_copy(const char *path, const char *mode, uint64_t bytes, int with_files) {
  char options[128];
  snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=%s,uid=%d,gid=%d", (unsigned long long)bytes,
           (unsigned long long)(bytes >> 14) + 16384, mode, GUEST_ID, GUEST_ID);
  int before = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (before < 0) return -1;
  if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options)) return close(before), -1;
  if (!with_files) return close(before);
  int after = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (after < 0) return close(before), -1;
  return copy_tree(before, after, 0);
}

/* ---- helpers that go into the guest's namespaces; they share our memory while we wait ---- */

static int helper_failed(struct helper *helper, const char *step) {
  helper->number = errno;
  helper->failed = step;
  return 1;
}

/* pid namespaces hold for children only, and /proc shows the one of who mounts it: this runs in the fork's own. */
static int mount_main(void *arg) {
  struct helper *helper = arg;
  if (own_copy("/workspace", "755", helper->fs_bytes, 1)) return helper_failed(helper, "copy /workspace");
  if (own_copy("/tmp", "1777", helper->fs_bytes, 1)) return helper_failed(helper, "copy /tmp");
  if (own_copy("/dev/shm", "1777", helper->fs_bytes, 0)) return helper_failed(helper, "mount /dev/shm");
  if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL)) return helper_failed(helper, "mount /proc");
  return 0;
}

static int loopback_up(void) {
  struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  int failed = ioctl(fd, SIOCSIFFLAGS, &request);
  close(fd);
  return failed;
}

static char mount_stack[HELPER_STACK] __attribute__((aligned(16)));

static int set_up_main(void *arg) {
  struct helper *helper = arg;
  char path[64], map[32];
  if (enter(helper->parent, CLONE_NEWUSER)) return helper_failed(helper, "enter the user namespace");
  if (helper->allowed && put("/proc/sys/user/max_user_namespaces", helper->allowed))
    return helper_failed(helper, "limit user namespaces");
  if (helper->target < 0) return 0;
  snprintf(map, sizeof map, "%d %d 1", GUEST_ID, GUEST_ID);
  snprintf(path, sizeof path, "/proc/%d/setgroups", (int)helper->pid);
  if (put(path, "deny")) return helper_failed(helper, "deny setgroups");
  snprintf(path, sizeof path, "/proc/%d/uid_map", (int)helper->pid);
  if (put(path, map)) return helper_failed(helper, "map the user");
  snprintf(path, sizeof path, "/proc/%d/gid_map", (int)helper->pid);
  if (put(path, map)) return helper_failed(helper, "map the group");
  if (enter(helper->target, CLONE_NEWUSER)) return helper_failed(helper, "enter the fork's user namespace");
  if (put("/proc/sys/user/max_user_namespaces", "0")) return helper_failed(helper, "limit user namespaces");
  if (enter(helper->target, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET)) return helper_failed(helper, "enter the fork");
  if (loopback_up()) return helper_failed(helper, "start the loopback interface");
  pid_t pid = clone(mount_main, mount_stack + HELPER_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, helper);
  if (pid < 0) return helper_failed(helper, "enter the fork's pid namespace");
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
  return 0;
}

static int run_helper(struct helper *helper) {
  static char stack[HELPER_STACK] __attribute__((aligned(16)));
  pid_t pid = clone(set_up_main, stack + HELPER_STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, helper);
  if (pid < 0) return helper_failed(helper, "start a helper"), -1;
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
  errno = helper->number;
  return helper->failed ? -1 : 0;
}

/* A limit counts in every user namespace up the line, so it is lifted in all that the fork descends from. */
static int allow(struct job *job, const char *count) {
  for (; job; job = job->above) {
    struct helper helper = {.target = -1, .parent = job->pidfd, .allowed = count};
    if (run_helper(&helper)) return -1;
  }
  return 0;
}

/* ---- requests of the host, and hellos of forks ---- */

/* OP_ALLOW_FORKS: the job to fork and the new view's number; descriptors: its socket, stdout, stderr. */
int forks_command(const struct head *head, const char *body, int *fds, int nfds) {
  uint32_t words[2];
  if (head->op != OP_ALLOW_FORKS || head->len != sizeof words || nfds != 3) return -1;
  memcpy(words, body, sizeof words);
  struct job *job = job_by_id(words[0]);
  if (!job || !(job->spec.flags & SPAWN_FORKABLE) || job->ended) return send_error(head->id, ESRCH, "no such interpreter"), 0;
  struct pending *slot = NULL;
  for (int i = 0; i < MAX_VIEWS && !slot; i++)
    if (!pending[i].used) slot = &pending[i];
  if (!slot || words[1] >= MAX_VIEWS) return send_error(head->id, ENOSPC, "fork one box so often"), 0;
  if (allow(job, "1000000")) return send_error(head->id, errno, "allow a fork"), 0;
  *slot = (struct pending){.used = 1, .job = job - jobs, .view = words[1], .id = head->id};
  for (int i = 0; i < 3; i++) slot->fds[i] = fds[i], fds[i] = -1;
  send_frame(OP_PONG, head->id, NULL, 0, NULL, 0, -1); /* now it may be forked; OP_STARTED follows */
  return 0;
}

struct __attribute__((packed)) word {
  char what; /* h: a fork is there; e: its interpreter has ended, with this status */
  int32_t status;
};

static pid_t receive_word(int fd, struct word *word) {
  char room[CMSG_SPACE(sizeof(struct ucred))];
  struct iovec part = {word, sizeof *word};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got != (word->what == 'h' ? 1 : (ssize_t)sizeof *word)) return -1;
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  struct ucred who;
  if (!c || c->cmsg_type != SCM_CREDENTIALS) return -1;
  memcpy(&who, CMSG_DATA(c), sizeof who);
  return who.pid; /* the kernel's word, as our pid namespace numbers it */
}

static int answer_fork(int fd, const int *fds) {
  char room[CMSG_SPACE(sizeof(int) * 4)];
  struct iovec part = {"y", 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int) * 4);
  memcpy(CMSG_DATA(c), fds, sizeof(int) * 4);
  return sendmsg(fd, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static const char *adopt(struct job *parent, struct pending *slot, pid_t pid) {
  struct spawn spec = parent->spec;
  spec.view = slot->view;
  struct job *job = job_new(slot->id, &spec);
  if (!job) return errno = EAGAIN, "take one more fork";
  const char *step = NULL;
  int ends[2] = {-1, -1};
  job->init = pid;
  job->above = parent;
  job->adopted = 1;
  job->wstatus = -1;
  job->started_ns = now_ns();
  job->pidfd = syscall(SYS_pidfd_open, pid, 0);
  struct helper helper = {.target = job->pidfd, .parent = parent->pidfd, .pid = pid, .fs_bytes = spec.fs_bytes};
  if (job->pidfd < 0) step = "find the fork";
  else if (run_helper(&helper)) step = (const char *)helper.failed;
  else if (slot_adopt(job, pid)) step = "join cgroup";
  else if (view_add(slot->view, pid)) step = "open the fork's namespaces";
  else if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) step = "make a socket";
  else if (setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int))) step = "make a socket";
  else if (answer_fork(parent->forks, (int[]){slot->fds[0], slot->fds[1], slot->fds[2], ends[1]})) step = "answer the fork";
  int number = errno;
  if (ends[1] >= 0) close(ends[1]);
  job->forks = ends[0];
  if (step) {
    if (job->pidfd >= 0) syscall(SYS_pidfd_send_signal, job->pidfd, SIGKILL, NULL, 0);
    job_free(job);
  }
  errno = number;
  return step;
}

static void farewell(pid_t pid, int status) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && jobs[i].adopted && jobs[i].init == pid && jobs[i].id) {
      jobs[i].wstatus = status;
      job_main_ended(&jobs[i]);
    }
}

void forks_hello(struct job *parent) {
  struct word word = {.what = 0};
  pid_t pid = receive_word(parent->forks, &word);
  if (pid >= 0 && word.what == 'e') return farewell(pid, word.status);
  if (pid < 0) { /* it talks nonsense or has ended: it will not be forked again */
    close(parent->forks);
    parent->forks = -1;
    return;
  }
  struct pending *slot = NULL;
  int others = 0;
  for (int i = 0; i < MAX_VIEWS; i++)
    if (pending[i].used && pending[i].job == parent - jobs) {
      if (!slot) slot = &pending[i];
      else others++;
    }
  if (!slot) { /* nobody asked for this fork */
    kill(pid, SIGKILL);
    return;
  }
  const char *step = adopt(parent, slot, pid);
  uint32_t told = pid;
  if (step) send_error(slot->id, errno, step);
  else send_frame(OP_STARTED, slot->id, &told, sizeof told, NULL, 0, -1);
  if (step) kill(pid, SIGKILL);
  for (int i = 0; i < 3; i++) close(slot->fds[i]);
  slot->used = 0;
  if (!others) allow(parent, "0");
}

/* The fork whose init holds the view's namespaces. */
struct job *view_owner(int view) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && jobs[i].adopted && jobs[i].view == view) return &jobs[i];
  return NULL;
}

void forks_ended(struct job *above) {
  if (above->used && above->closing && !count_forks(above)) syscall(SYS_pidfd_send_signal, above->pidfd, SIGKILL, NULL, 0);
}

/* Ends all of a view but the forks inside it, which end it when the last of them does. */
int view_close(int view) {
  struct job *owner = view_owner(view);
  if (view <= 0 || view >= MAX_VIEWS) return errno = EINVAL, -1;
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && !jobs[i].adopted && jobs[i].view == view) job_kill(&jobs[i], ENDED_HOST);
  if (owner) {
    owner->closing = 1;
    job_kill(owner, ENDED_HOST);
  }
  return 0;
}
