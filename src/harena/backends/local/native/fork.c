/* Forks of a live interpreter. The interpreter clones itself into new namespaces, which only it can do with its memory.
 * Its seccomp filter has the kernel ask us about each such clone, and we let one through for each fork that the host has
 * announced, in the time that the fork has; every other one is refused. A second wall stands behind: its user namespace
 * may have no others in it (max_user_namespaces 0), except between our yes and the fork's hello. We, not the guest, then
 * set the fork up from outside: its user, its own copy of the files, its /proc, its loopback. Whatever fails, or takes
 * too long, ends the fork and everything that was cloned for it.
 *
 * One file, however long: what keeps a guest out of it is the order of these steps. */
#include "harena.h"
#include <dirent.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#define HELPER_STACK (256 << 10)
#define CLONE_WITHIN_NS (60ull * 1000000000) /* of the announcement; as long as the host waits for the interpreter */
#define HELLO_WITHIN_NS (5ull * 1000000000) /* of our yes to the clone */
#define MOUNT_WITHIN_NS (2ull * 1000000000)

struct pending { /* a fork the host has announced: where its answers go */
  int used, job, view, fds[3];
  int cloned; /* we have said yes to its clone */
  uint32_t id;
  uint64_t deadline_ns;
};
static struct pending pending[MAX_VIEWS];

struct helper {
  int target;   /* pidfd of the fork; -1: only the limit is wanted */
  int parent;   /* pidfd of the init of the job it came from */
  pid_t pid;
  uint64_t fs_bytes;
  const char *allowed;
  int view, source; /* its number, and its parent's, in a box from an image */
  int opened[8], count; /* descriptors that end with the helper */
  const char *volatile failed;
  volatile int number, done;
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

/* In a box from an image files have owners, and what it has changed has attributes and whiteouts of the overlay. */

static mode_t copied_mode(const struct stat *info) { return info->st_mode & (config.image.on ? 07777 : 01777); }

static int copy_owner(int to, const char *name, const struct stat *info) {
  if (!config.image.full) return 0;
  return fchownat(to, name, info->st_uid, info->st_gid, AT_SYMLINK_NOFOLLOW);
}

struct attributes {
  char names[8 << 10], value[8 << 10];
};

static int copy_attributes(int from, int to) {
  if (!config.image.on) return 0;
  struct attributes *room = vault_take(sizeof *room);
  ssize_t names = room ? flistxattr(from, room->names, sizeof room->names) : -1, got = 0;
  for (char *name = room ? room->names : NULL; names > 0 && got >= 0 && name < room->names + names; name += strlen(name) + 1) {
    if (strncmp(name, "user.", 5) && strcmp(name, "security.capability")) continue;
    got = fgetxattr(from, name, room->value, sizeof room->value);
    if (got >= 0 && fsetxattr(to, name, room->value, got, 0)) got = -1;
  }
  int number = errno;
  vault_give(room, sizeof *room);
  errno = number;
  if (names < 0 && number == ENOTSUP) return 0;
  return !room || names < 0 || got < 0 ? -1 : 0;
}

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
  failed = failed || copy_owner(to, name, info) || copy_attributes(in, out) || fchmod(out, copied_mode(info)) || futimens(out, times);
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
      struct dirent *entry = (struct dirent *)(listing->entries + at); /* the same on 64 bits, and musl has only this name */
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
  if (fstatat(from, name, &info, AT_SYMLINK_NOFOLLOW)) return errno == ENOENT ? 0 : -1; /* gone meanwhile */
  struct timespec times[2] = {info.st_atim, info.st_mtim};
  if (S_ISREG(info.st_mode)) return copy_file(from, to, name, &info);
  if (S_ISLNK(info.st_mode)) {
    ssize_t len = readlinkat(from, name, target, sizeof ((struct listing *)0)->target - 1);
    if (len < 0) return errno == ENOENT ? 0 : -1;
    target[len] = 0;
    return symlinkat(target, to, name) || copy_owner(to, name, &info) || utimensat(to, name, times, AT_SYMLINK_NOFOLLOW);
  }
  if (config.image.on && S_ISCHR(info.st_mode) && !info.st_rdev) return mknodat(to, name, S_IFCHR | 0600, 0); /* a whiteout */
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
  if (copy_attributes(a, b) || copy_owner(to, name, &info)) {
    int number = errno;
    close(a);
    close(b);
    return errno = number, -1;
  }
  return copy_tree(a, b, depth + 1) || fchmodat(to, name, copied_mode(&info), 0) || utimensat(to, name, times, 0);
}

int copy_whole(int from, int to) { return copy_tree(from, to, 0); }

/* `before`: a descriptor of the folder to copy, which is taken */
int own_copy(const char *path, const char *mode, uint64_t bytes, int before, int with_files) {
  char options[128];
  int uid = config.image.on ? (int)config.image.uid : GUEST_ID, gid = config.image.on ? (int)config.image.gid : GUEST_ID;
  if (*mode == '1' && config.image.full) uid = gid = 0;
  snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=%s,uid=%d,gid=%d", (unsigned long long)bytes,
           (unsigned long long)(bytes >> 14) + 16384, mode, uid, gid);
  if (before < 0) return -1;
  if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options)) return close(before), -1;
  if (!with_files) return close(before);
  int after = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (after < 0) return close(before), -1;
  return copy_tree(before, after, 0);
}

/* ---- helpers that go into the guest's namespaces; they share our memory while we wait ---- */

/* They stay in the user namespace of the job that is forked, with all of its capabilities, which the guest has not: in the
 * fork's own namespace, which belongs to the guest's user, the guest could trace them. */

static int helper_failed(struct helper *helper, const char *step) {
  helper->number = errno;
  helper->failed = step;
  return 1;
}

static int noted(struct helper *helper, int fd) {
  if (fd >= 0 && helper->count < 8) helper->opened[helper->count++] = fd;
  return fd;
}

/* /proc shows the pid namespace of the process that mounts it, so this one must be born in the fork's. There the guest
 * sees it and may signal it, which is why it does nothing else and its end is checked. */
static int proc_main(void *arg) {
  struct helper *helper = arg;
  const char *place = config.image.on ? IMAGE_ASIDE "/proc" : "/proc";
  long failed = raw5(SYS_mount, (long)"proc", (long)place, (long)"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, 0);
  helper->number = -failed;
  helper->done = !failed;
  raw5(SYS_exit_group, 0, 0, 0, 0, 0);
  return 0;
}

/* A process that is stopped has been tampered with as much as one that is killed. */
static int await_mounter(pid_t pid) {
  struct pollfd ended = {syscall(SYS_pidfd_open, pid, 0), POLLIN, 0};
  int status = 0;
  for (uint64_t end = now_ns() + MOUNT_WITHIN_NS; now_ns() < end;) {
    pid_t got = waitpid(pid, &status, WNOHANG | WUNTRACED | __WALL);
    if (got == pid && !WIFSTOPPED(status)) return WIFEXITED(status) ? 0 : -1;
    if (got != 0 && !(got < 0 && errno == EINTR)) break;
    poll(&ended, ended.fd >= 0, 1);
  }
  kill(pid, SIGKILL);
  while (waitpid(pid, &status, __WALL) < 0 && errno == EINTR) {}
  return -1;
}

static int mount_proc(struct helper *helper) {
  static char stack[16 << 10] __attribute__((aligned(16)));
  sigset_t all;
  memset(&all, 0xff, sizeof all);
  sigprocmask(SIG_SETMASK, &all, NULL);
  pid_t pid = clone(proc_main, stack + sizeof stack, CLONE_VM | SIGCHLD, helper);
  if (pid < 0) return -1;
  if (await_mounter(pid)) return errno = EINTR, -1;
  return helper->done ? 0 : (errno = helper->number, -1);
}

/* The same ids as its parent has: each line of that map, onto itself. */
static int same_ids(const char *map, char *text, size_t room) {
  unsigned long first, outside, count;
  int at = 0, read = 0;
  for (*text = 0; sscanf(map, "%lu %lu %lu%n", &first, &outside, &count, &read) == 3; map += read) {
    at += snprintf(text + at, room - at, "%lu %lu %lu\n", first, first, count);
    if (at >= (int)room) return errno = E2BIG, -1;
  }
  return at ? 0 : (errno = EINVAL, -1);
}

static int map_user(pid_t pid) {
  char path[64], uids[512], gids[512];
  snprintf(uids, sizeof uids, "%d %d 1", GUEST_ID, GUEST_ID);
  snprintf(gids, sizeof gids, "%d %d 1", GUEST_ID, GUEST_ID);
  if (config.image.on && (same_ids(config.image.uid_map, uids, sizeof uids) || same_ids(config.image.gid_map, gids, sizeof gids))) return -1;
  snprintf(path, sizeof path, "/proc/%d/setgroups", (int)pid);
  if (!config.image.full && put(path, "deny")) return -1;
  snprintf(path, sizeof path, "/proc/%d/uid_map", (int)pid);
  if (put(path, uids)) return -1;
  snprintf(path, sizeof path, "/proc/%d/gid_map", (int)pid);
  return put(path, gids);
}

static int set_up_main(void *arg) {
  struct helper *helper = arg;
  if (enter(helper->parent, CLONE_NEWUSER)) return helper_failed(helper, "enter the user namespace");
  if (helper->allowed && put("/proc/sys/user/max_user_namespaces", helper->allowed))
    return helper_failed(helper, "limit user namespaces");
  if (helper->target < 0) return 0;
  if (config.image.full && image_root()) return helper_failed(helper, "become root of the image");
  if (map_user(helper->pid)) return helper_failed(helper, "map the fork's user");
  int limits = noted(helper, open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC)); /* the fork's will be read-only */
  if (limits < 0) return helper_failed(helper, "open /proc");
  int tree = -1;
  const char *step = config.image.on ? image_copy(helper->view, helper->source, &tree) : NULL;
  noted(helper, tree);
  if (step) return helper_failed(helper, step);
  if (enter(helper->target, CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET)) return helper_failed(helper, "enter the fork");
  if (loopback_up()) return helper_failed(helper, "start the loopback interface");
  int workspace = open("/workspace", O_RDONLY | O_DIRECTORY | O_CLOEXEC), temporary = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int shared = open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (config.image.on && (step = image_attach(tree))) return helper_failed(helper, step);
  if (mount_proc(helper)) return helper_failed(helper, "mount the fork's /proc");
  if (config.image.on && (step = image_replace())) return helper_failed(helper, step);
  if (mount_terminals()) return helper_failed(helper, "mount the fork's /dev/pts");
  if (own_copy("/workspace", "755", helper->fs_bytes, workspace, 1)) return helper_failed(helper, "copy /workspace");
  if (own_copy("/tmp", "1777", helper->fs_bytes, temporary, 1)) return helper_failed(helper, "copy /tmp");
  if (own_copy("/dev/shm", "1777", helper->fs_bytes, shared, 0)) return helper_failed(helper, "mount /dev/shm");
  if (config.image.on && (step = image_remember(helper->view))) return helper_failed(helper, step);
  if (enter(helper->target, CLONE_NEWUSER)) return helper_failed(helper, "enter the fork's user namespace");
  if (fchdir(limits) || put("sys/user/max_user_namespaces", "0")) return helper_failed(helper, "limit user namespaces");
  helper->done = 2;
  return 0;
}

static int run_helper(struct helper *helper) {
  static char stack[HELPER_STACK] __attribute__((aligned(16)));
  int status = -1;
  int files = config.image.on ? CLONE_FILES : 0; /* to leave us a descriptor */
  pid_t pid = clone(set_up_main, stack + HELPER_STACK, CLONE_VM | CLONE_VFORK | files | SIGCHLD, helper);
  if (pid < 0) return helper_failed(helper, "start a helper"), -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  for (int i = 0; files && i < helper->count; i++) close(helper->opened[i]);
  if (!helper->failed && (!WIFEXITED(status) || WEXITSTATUS(status) || (helper->target >= 0 && helper->done != 2)))
    errno = EINTR, helper_failed(helper, "finish the fork's namespaces");
  errno = helper->number;
  return helper->failed ? -1 : 0;
}

/* A limit counts in every user namespace up the line, so it is lifted in all that the fork descends from. */
static int open_doors(struct job *job) {
  for (; job; job = job->above) {
    struct helper helper = {.target = -1, .parent = job->pidfd, .allowed = "1000000"};
    if (job->door_open) continue;
    job->door_open = 1;
    if (run_helper(&helper)) return -1;
  }
  return 0;
}

/* Once no clone is under way. A namespace that cannot be entered any more has nobody in it who could use it. */
static void close_doors(void) {
  for (int i = 0; i < MAX_VIEWS; i++)
    if (pending[i].used && pending[i].cloned) return;
  for (int i = 0; i < jobs_end; i++) {
    struct helper helper = {.target = -1, .parent = jobs[i].pidfd, .allowed = "0"};
    if (!jobs[i].used || !jobs[i].door_open) continue;
    jobs[i].door_open = 0;
    if (run_helper(&helper) && helper.number != ESRCH) job_kill(&jobs[i], ENDED_HOST);
  }
}

/* ---- which processes are forks ---- */

struct origin {
  pid_t parent;
  int levels, last; /* of pid namespaces it is in, counted from ours, and its number in the innermost */
};

static int find_origin(pid_t pid, struct origin *origin) {
  char path[64], text[4096], *at;
  snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
  if (fd >= 0) close(fd);
  if (got <= 0) return -1;
  text[got] = 0;
  if (!(at = strstr(text, "\nPPid:"))) return -1;
  origin->parent = atoi(at + 6);
  origin->levels = 0;
  if (!(at = strstr(text, "\nNSpid:"))) return -1;
  for (at += 7; *at == '\t'; origin->levels++) origin->last = strtol(at + 1, &at, 10);
  return origin->levels ? 0 : -1;
}

/* The job that a process belongs to: its nearest ancestor that is the init of one. */
static struct job *job_above(pid_t pid) {
  struct origin origin;
  for (int depth = 0; pid > 1 && depth < 100000; depth++, pid = origin.parent) {
    for (int i = 0; i < jobs_end; i++)
      if (jobs[i].used && jobs[i].init == pid) return &jobs[i];
    if (find_origin(pid, &origin)) return NULL;
  }
  return NULL;
}

static int is_fork_of(pid_t pid, const struct job *job) {
  struct origin fork, above;
  return !find_origin(pid, &fork) && !find_origin(job->init, &above) && fork.parent == job->init && fork.last == 1 &&
         fork.levels == above.levels + 1;
}

/* The inits of namespaces that were cloned below a job and are no fork that we know. What is in them ends with them. */
static void kill_strays(struct job *job) {
  struct origin origin, above;
  if (find_origin(job->init, &above)) return;
  for (int round = 0, found = 1; found && round < 100; round++) {
    DIR *proc = opendir("/proc");
    found = 0;
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
      pid_t pid = atoi(entry->d_name);
      if (pid <= 1 || find_origin(pid, &origin) || origin.levels <= above.levels || origin.last != 1) continue;
      struct job *owner = job_above(pid);
      if (owner != job || owner->init == pid) continue;
      kill(pid, SIGKILL);
      found = 1;
    }
    if (proc) closedir(proc);
    if (found) usleep(1000);
  }
}

/* ---- requests of the host, questions of the kernel, and hellos of forks ---- */

static void free_slot(struct pending *slot) {
  for (int i = 0; i < 3; i++) close(slot->fds[i]);
  slot->used = 0;
}

/* Ends every fork of a job that was announced and is not there yet. */
void forks_cancel(struct job *job, int number, const char *step) {
  int found = 0;
  for (int i = 0; i < MAX_VIEWS; i++) {
    if (!pending[i].used || pending[i].job != job - jobs) continue;
    send_error(pending[i].id, number, step);
    free_slot(&pending[i]);
    found = 1;
  }
  if (!found) return;
  kill_strays(job);
  close_doors();
}

uint64_t forks_next_ns(void) {
  uint64_t next = UINT64_MAX;
  for (int i = 0; i < MAX_VIEWS; i++)
    if (pending[i].used && pending[i].deadline_ns < next) next = pending[i].deadline_ns;
  return next;
}

void forks_enforce_time(uint64_t now) {
  for (int i = 0; i < MAX_VIEWS; i++)
    if (pending[i].used && pending[i].deadline_ns <= now)
      forks_cancel(&jobs[pending[i].job], ETIMEDOUT, "fork its interpreter in time");
}

/* OP_CANCEL_FORKS: the job whose announced forks the host gives up. */
static int cancel_command(const struct head *head, const char *body) {
  uint32_t id;
  if (head->len != sizeof id) return -1;
  memcpy(&id, body, sizeof id);
  struct job *job = job_by_id(id);
  if (job) forks_cancel(job, ECANCELED, "be forked: the host has given it up");
  send_frame(OP_PONG, head->id, NULL, 0, NULL, 0, -1);
  return 0;
}

/* Has the kernel ask, before any filter that allows the clone of a fork, and hands the end that is asked to the other side
 * of the socket. Done before the guest runs, and only once: the kernel refuses a second listener. */
int forks_listen(void) {
  enum { NUMBER = offsetof(struct seccomp_data, nr), FLAGS = offsetof(struct seccomp_data, args) };
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, NUMBER),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FLAGS),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FORK_FLAGS, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), /* the filters that are set later decide */
  };
  struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
  int listener = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
  if (listener < 0) return -1;
  char room[CMSG_SPACE(sizeof listener)];
  struct iovec part = {"l", 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof listener);
  memcpy(CMSG_DATA(c), &listener, sizeof listener);
  int failed = sendmsg(FORKS_FD, &message, MSG_NOSIGNAL) != 1;
  close(listener);
  return failed ? -1 : 0;
}

static struct pending *next_pending(const struct job *job, int cloned) {
  for (int i = 0; i < MAX_VIEWS; i++)
    if (pending[i].used && pending[i].cloned == cloned && pending[i].job == job - jobs) return &pending[i];
  return NULL;
}

/* A process of the job, or of one of its forks, wants to make the clone of a fork. */
void forks_asked(struct job *listening) {
  struct pollfd asked = {listening->listener, POLLIN, 0};
  struct seccomp_notif question;
  memset(&question, 0, sizeof question);
  if (poll(&asked, 1, 0) != 1 || !(asked.revents & POLLIN)) { /* all who could ask have ended */
    close(listening->listener);
    listening->listener = -1;
    return;
  }
  if (ioctl(listening->listener, SECCOMP_IOCTL_NOTIF_RECV, &question)) return; /* who asked has ended */
  struct job *job = job_above(question.pid);
  struct pending *slot = job && !job->ended ? next_pending(job, 0) : NULL;
  struct seccomp_notif_resp answer = {.id = question.id, .error = -EPERM};
  if (slot) {
    slot->cloned = 1;
    slot->deadline_ns = now_ns() + HELLO_WITHIN_NS;
    if (open_doors(job)) forks_cancel(job, errno, "allow a fork");
    else answer.error = 0, answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  }
  if (ioctl(listening->listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) && slot && slot->used)
    forks_cancel(job, ESRCH, "fork an interpreter that has ended");
}

/* OP_ALLOW_FORKS: the job to fork and the new view's number; descriptors: its socket, stdout, stderr. */
int forks_command(const struct head *head, const char *body, int *fds, int nfds) {
  uint32_t words[2];
  if (head->op == OP_CANCEL_FORKS) return cancel_command(head, body);
  if (head->op != OP_ALLOW_FORKS || head->len != sizeof words || nfds != 3) return -1;
  memcpy(words, body, sizeof words);
  struct job *job = job_by_id(words[0]);
  if (!job || !(job->spec.flags & SPAWN_FORKABLE) || job->ended) return send_error(head->id, ESRCH, "no such interpreter"), 0;
  if (job->forks < 0) return send_error(head->id, EPROTO, "be forked: its interpreter talks nonsense"), 0;
  struct pending *slot = NULL;
  for (int i = 0; i < MAX_VIEWS && !slot; i++)
    if (!pending[i].used) slot = &pending[i];
  if (!slot || words[1] >= MAX_VIEWS) return send_error(head->id, ENOSPC, "fork one box so often"), 0;
  *slot = (struct pending){
      .used = 1, .job = job - jobs, .view = words[1], .id = head->id, .deadline_ns = now_ns() + CLONE_WITHIN_NS};
  for (int i = 0; i < 3; i++) slot->fds[i] = fds[i], fds[i] = -1;
  send_frame(OP_PONG, head->id, NULL, 0, NULL, 0, -1); /* now it may be forked; OP_STARTED follows */
  return 0;
}

/* The sender's pid, by the kernel's word and as our pid namespace numbers it; -1 for nonsense. The word is l: the listener
 * of a new interpreter, or h: a fork is there. */
static pid_t receive_word(int fd, char *word, int *listener) {
  char room[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(int))];
  struct iovec part = {word, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  pid_t sender = -1;
  *listener = -1;
  if (got != 1) return -1;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    struct ucred who;
    if (c->cmsg_level != SOL_SOCKET) continue;
    if (c->cmsg_type == SCM_CREDENTIALS) memcpy(&who, CMSG_DATA(c), sizeof who), sender = who.pid;
    if (c->cmsg_type == SCM_RIGHTS) memcpy(listener, CMSG_DATA(c), sizeof *listener); /* there is room for one */
  }
  return message.msg_flags & MSG_TRUNC ? -1 : sender; /* it was longer */
}

static int answer_fork(int fd, const int *fds) {
  char room[CMSG_SPACE(sizeof(int) * 5)];
  struct iovec part = {"y", 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(sizeof(int) * 5);
  memcpy(CMSG_DATA(c), fds, sizeof(int) * 5);
  return sendmsg(fd, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static const char *adopt(struct job *parent, struct pending *slot, pid_t pid) {
  struct spawn spec = parent->spec;
  spec.view = slot->view;
  struct job *job = job_new(slot->id, &spec);
  if (!job) return errno = EAGAIN, "take one more fork";
  const char *step = NULL;
  int ends[2] = {-1, -1}, tells[2] = {-1, -1};
  job->init = pid;
  job->above = parent;
  job->adopted = 1;
  job->wstatus = -1;
  job->started_ns = now_ns();
  job->pidfd = syscall(SYS_pidfd_open, pid, 0);
  struct helper helper = {.target = job->pidfd, .parent = parent->pidfd, .pid = pid, .fs_bytes = spec.fs_bytes, .view = slot->view, .source = parent->view};
  if (job->pidfd < 0) step = "find the fork";
  else if (!is_fork_of(pid, parent)) errno = EPERM, step = "take what was cloned for a fork";
  else if (config.image.on && (step = image_prepare(slot->view, parent->view, 0))) {}
  else if (run_helper(&helper)) step = (const char *)helper.failed;
  else if (slot_adopt(job, pid)) step = "join cgroup";
  else if (view_add(slot->view, pid)) step = "open the fork's namespaces";
  else if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) step = "make a socket";
  else if (setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int))) step = "make a socket";
  else if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, tells)) step = "make a socket";
  else if (answer_fork(parent->forks, (int[]){slot->fds[0], slot->fds[1], slot->fds[2], ends[1], tells[1]})) step = "answer the fork";
  int number = errno;
  if (step) image_forget(slot->view);
  if (ends[1] >= 0) close(ends[1]);
  if (tells[1] >= 0) close(tells[1]);
  job->forks = ends[0];
  job->tell = tells[0];
  if (step) {
    if (job->pidfd >= 0) syscall(SYS_pidfd_send_signal, job->pidfd, SIGKILL, NULL, 0);
    job_free(job);
  }
  errno = number;
  return step;
}

/* The fork's interpreter has ended. Nonsense, and a line that nobody holds any more, mean the same: the line is there for
 * nothing else, and neither its parent nor its own forks have it. */
void forks_farewell(struct job *job) {
  struct farewell word;
  ssize_t got = recv(job->tell, &word, sizeof word, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  job->wstatus = got == sizeof word && !word.failed ? word.status : -1;
  if (got == sizeof word && word.failed > 0 && job->id) {
    send_error(job->id, word.failed, "set a fork up");
    job->id = 0;
  }
  job_main_ended(job);
}

void forks_hello(struct job *parent) {
  char word = 0;
  int listener;
  pid_t pid = receive_word(parent->forks, &word, &listener);
  if (pid >= 0 && word == 'l' && listener >= 0 && parent->listener < 0 && !parent->adopted) {
    parent->listener = listener;
    return;
  }
  if (listener >= 0) close(listener);
  if (pid < 0 || word != 'h') { /* it talks nonsense or has ended: it will not be forked again */
    forks_cancel(parent, EPROTO, "be forked: its interpreter talks nonsense");
    close(parent->forks);
    parent->forks = -1;
    return;
  }
  struct pending *slot = next_pending(parent, 1);
  if (!slot) { /* nobody asked for this fork */
    kill(pid, SIGKILL);
    return;
  }
  const char *step = adopt(parent, slot, pid);
  int number = errno;
  uint32_t told = pid;
  if (step) send_error(slot->id, number, step);
  else send_frame(OP_STARTED, slot->id, &told, sizeof told, NULL, 0, -1);
  free_slot(slot);
  if (step) kill(pid, SIGKILL), kill_strays(parent);
  close_doors();
}

/* The fork whose init holds the view's namespaces. */
struct job *view_owner(int view) {
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && ((jobs[i].adopted && jobs[i].view == view) || (jobs[i].holds && jobs[i].holds == view))) return &jobs[i];
  return NULL;
}

void forks_ended(struct job *above) {
  if (above->used && above->closing && !count_forks(above)) syscall(SYS_pidfd_send_signal, above->pidfd, SIGKILL, NULL, 0);
}

/* Ends all of a view but the forks inside it, which end it when the last of them does. */
int view_close(int view) {
  struct job *owner = view_owner(view);
  image_forget(view);
  if (view <= 0 || view >= MAX_VIEWS) return errno = EINVAL, -1;
  for (int i = 0; i < jobs_end; i++)
    if (jobs[i].used && !jobs[i].adopted && jobs[i].view == view) job_kill(&jobs[i], ENDED_HOST);
  if (owner) {
    owner->closing = 1;
    job_kill(owner, ENDED_HOST);
  }
  return 0;
}
