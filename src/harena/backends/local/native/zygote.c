/* The loop inside a warm Python. A job is a fork of the interpreter: the job's init makes it, and it comes back to
 * Python through zygote_serve; the zygote itself never returns. Loaded with ctypes, so that any Python can use it. */
#include "harena.h"
#include <sys/mman.h>
#include <sys/prctl.h>

static int became_flags;
static void *back[5]; /* where a forked job returns to, on the interpreter's own stack */

static void become_guest(struct job *job) {
  int *ends[] = {&job->child_in,   &job->child_out,   &job->child_err,  &job->child_res,
                 &job->child_hand, &job->child_extra, &job->child_forks};
  const char *step = "stdio";
  int kept = HAND_FD;
  for (int i = 0; i < 7; i++) /* out of the way of the numbers they will get */
    if (*ends[i] >= 0 && (*ends[i] = fcntl(*ends[i], F_DUPFD_CLOEXEC, 64)) < 0) goto failed;
  for (int i = 0; i < 7; i++) /* a number that is not given to the guest may be one of ours: the host's socket is 3 */
    if (*ends[i] < 0 ? close(i) && errno != EBADF : dup2(*ends[i], i) < 0) goto failed;
  if (job->child_extra >= 0) kept = EXTRA_FD;
  if (job->child_forks >= 0) kept = FORKS_FD;
  step = "join cgroup";
  if (slot_join(job, 0)) goto failed;
  step = "become the image's user";
  if (image_become(0)) goto failed;
  if (syscall(SYS_close_range, kept + 1, ~0u, 0)) goto failed;
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (setsid() < 0 || chdir("/workspace")) goto failed;
  step = "ask before forks";
  if (job->spec.flags & SPAWN_FORKABLE && forks_listen()) goto failed;
  if ((step = confine(&job->spec, job->slot >= 0))) goto failed;
  for (int fd = RESULT_FD; fd <= kept; fd++) fcntl(fd, F_SETFD, FD_CLOEXEC);
  if (job->spec.kind == KIND_SERVER) close(RESULT_FD); /* it has no results, and none of its code may say what follows */
  became_flags = job->spec.flags | (job->id ? SPAWN_BATCH : 0); /* somebody waits: no time to warm up */
  __builtin_longjmp(back, 1);
failed:
  /* in place of the CPU time, before any guest code can write here: see follow_records */
  dprintf(RESULT_FD, "%c%c%c%c%c%c%c%c%s: %s", 255, 255, 255, 255, 255, 255, 255, 255, step, strerror(errno));
  _exit(126);
}

/* libc's fork, for the handlers of pthread_atfork: libraries with threads (BLAS) are broken in a child without them. */
static int become_program(struct job *job) {
  struct job own = *job; /* the fork has no other's */
  pid_t pid = fork();
  if (pid == 0) become_guest(&own);
  return pid;
}

/* ---- forks of a live interpreter, called by the interpreter itself: fork.c is the other side ---- */

static void *fork_back[5];
static char fork_folder[4096];
static uint64_t fork_keep; /* what an image's root has, and its fork as well */
static volatile int fork_failed; /* an errno, left by the fork's init while it shares our memory */

/* The end of a fork that could not be set up: no code of the guest has run in it. */
static _Noreturn void no_fork(int farewell) {
  struct farewell word = {.failed = errno ? errno : EPROTO};
  fork_failed = word.failed;
  if (farewell >= 0) send(farewell, &word, sizeof word, MSG_NOSIGNAL);
  _exit(126);
}

/* Becomes the init of the new namespaces: first it shares the interpreter's memory, whose thread waits (CLONE_VFORK);
 * it forks the interpreter and then is another program, with no memory of it and no capability. */
static int fork_init(void *unused) {
  (void)unused;
  int fds[5], numbers[4] = {EXTRA_FD, 1, 2, FORKS_FD};
  char byte, room[CMSG_SPACE(sizeof fds)], pid_text[24], fd_text[24];
  struct iovec part = {&byte, 1};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  if (send(FORKS_FD, "h", 1, MSG_NOSIGNAL) != 1 || recvmsg(FORKS_FD, &message, MSG_CMSG_CLOEXEC) != 1 || byte != 'y') no_fork(-1);
  struct cmsghdr *c = CMSG_FIRSTHDR(&message);
  if (!c || c->cmsg_len != CMSG_LEN(sizeof fds)) errno = EMFILE, no_fork(-1);
  memcpy(fds, CMSG_DATA(c), sizeof fds);
  pid_t pid = fork();
  if (pid < 0) no_fork(fds[4]);
  if (pid == 0) {
    int farewell = fcntl(fds[4], F_DUPFD_CLOEXEC, FORKS_FD + 1); /* out of the way of the numbers that the others get */
    if (farewell < 0 || close(fds[4])) no_fork(fds[4]);
    for (int i = 0; i < 4; i++)
      if (dup3(fds[i], numbers[i], numbers[i] > 2 ? O_CLOEXEC : 0) < 0 || close(fds[i])) no_fork(farewell);
    if (chdir(fork_folder) && chdir("/workspace")) no_fork(farewell);
    if (drop_capabilities(fork_keep)) no_fork(farewell);
    close(farewell);
    __builtin_longjmp(fork_back, 1);
  }
  int farewell = fcntl(fds[4], F_DUPFD, 0);
  if (farewell < 0) no_fork(fds[4]);
  snprintf(fd_text, sizeof fd_text, "%d", farewell);
  snprintf(pid_text, sizeof pid_text, "%d", (int)pid);
  char *argv[] = {"harena-init", fd_text, pid_text, NULL}, *envp[] = {NULL};
  execve(INIT_PATH, argv, envp);
  no_fork(farewell);
}

static long clone_fork(void *stack, size_t size) { return clone(fork_init, (char *)stack + size, FORK_FLAGS, NULL); }

/* Returns 0 in the fork, which has streams, files and namespaces of its own; in the parent 1, or -errno. */
int zygote_fork(void) {
  size_t size = 64 << 10;
  if (!getcwd(fork_folder, sizeof fork_folder)) strcpy(fork_folder, "/workspace");
  void *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) return -errno;
  fork_failed = 0;
  if (held_capabilities(&fork_keep)) return -errno;
  if (__builtin_setjmp(fork_back)) return 0;
  long pid = clone_fork(stack, size);
  int number = pid < 0 ? errno : fork_failed;
  munmap(stack, size);
  return number ? -number : 1;
}

/* Returns the spawn flags in a forked job; ends the process when the host is gone. The zygote and the inits that share its memory stay
 * on one processor: were they on two, every fork would interrupt the other to flush its view of that memory. */
int zygote_serve(int control, int cpu) {
  if (stay_on_cpu(cpu)) _exit(111);
  if (__builtin_setjmp(back)) return became_flags;
  serve(control, become_program);
  _exit(0);
}
