/* What the parts of the native launcher share.
 *
 * box.c      the command: makes the namespaces and the root of a box, then serves as its init
 * confine.c  what turns a process into a guest: capabilities, Landlock, seccomp, limits
 * job.c      one execution: its namespaces, its own init, its processes, its end
 * vault.c    memory for what the host sends and jobs write: no fork inherits it
 * serve.c    the loop that takes requests from the host and reports what became of the jobs
 * fork.c     forks of a live interpreter into namespaces of their own
 * watch.c    memory, CPU and process limits where no cgroup enforces them
 * image.c    boxes whose root is an image
 * zygote.c   the same loop inside a warm Python, where a job is a fork of the interpreter
 *
 * Host and box speak over a stream socket in frames: struct head, then `len` bytes. All integers are
 * little endian, as the machine's. ../wire.py is the other side; wire.h is made from it. */
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

#define OUTPUT_BLOCK (64u << 10) /* how much of a stream is kept before it is sent */
#define MAX_JOBS 512
#define MAX_VIEWS 256
/* Of a fork of a live interpreter; backend.py gives the same value to its seccomp filter. */
#define FORK_FLAGS \
  (CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_PARENT | CLONE_VM | CLONE_VFORK | SIGCHLD)
#define INIT_PATH "/.harena/init" /* this launcher, as boxes see it: the init of a fork's namespaces */
#define GUEST_ID 1000 /* uid and gid inside every box */
#define IMAGE_ROOT "/.harena/root"
#define MAX_UPPERS 256
#define MAX_FROZEN 64 /* layers of one view that were changes of its ancestors */
#define IMAGE_ASIDE "/tmp" /* where a fork's image is mounted until it becomes the root */
#define IDS_FIRST 100000 /* in a box with many ids: its number for the root of jobs */
#define IDS_FIRST_TEXT "100000"
#define IDS_KEPT (1ull << 6 | 1ull << 7) /* CAP_SETGID, CAP_SETUID: with them init and zygote map the ids of jobs */

/* The descriptors of a fork of the zygote, after its stdio. */
enum { RESULT_FD = 3, HAND_FD = 4, EXTRA_FD = 5, FORKS_FD = 6 };

/* For processes that share our memory and run beside us: errno is ours. Returns -errno. */
static inline long raw5(long n, long a, long b, long c, long d, long e) {
  long result;
#if defined(__x86_64__)
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
  __asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d,
                x4 __asm__("x4") = e;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4) : "memory");
  result = x0;
#else
#error "harena: no raw system call for this machine"
#endif
  return result;
}

/* What the init of a fork's namespaces says once: how its interpreter ended, or why there is none. */
struct farewell {
  int32_t status, failed; /* failed: an errno; the status of waitpid counts where it is 0 */
};

struct buffer { /* of a stream: what was not sent yet. One block of the vault, taken when it is first needed */
  char *data;
  size_t len;
};

struct profile_filter {
  void *code;
  uint16_t count;
};

struct image { /* of a box whose root is one: see image.c */
  int on, full; /* full: a job has many ids, not only one */
  uint32_t uid, gid, layers;
  uint64_t keep; /* capabilities of guests that are root */
  uint64_t root_bytes; /* how much may be written outside of /workspace and the like */
  char uid_map[512], gid_map[512], mounts[4096], cwd[4096];
  char **python, **python_env; /* the command that starts its Python, once the host has found one */
  gid_t groups[64];
  int group_count;
};

struct config {
  struct image image;
  struct profile_filter filter[PROFILES];
  char write_paths[4096]; /* NUL-separated, ended by an empty one: what Landlock leaves writable */
  cpu_set_t all_cpus; /* a loop and the inits that share its memory stay on one processor; guests get all of these */
  int cgroup_memory, cgroup_pids, cgroup_v2; /* folder descriptors, -1 where there is none */
};
extern struct config config;

struct slot { /* a cgroup that jobs use one after the other */
  int made, busy, procs[2], memory_max, pids_max, oom_events, pids_events;
  uint64_t memory_set, pids_set, oom_seen, pids_seen;
};

struct job {
  int used;
  uint32_t id;
  struct spawn spec;
  char *request; /* the body of the host's request, in the vault: what follows points into it */
  size_t request_len;
  char **argv, **envp, *cwd;
  pid_t init;  /* pid 1 of the job's own pid namespace, as this process sees it */
  int pidfd, slot, view;
  int in, out, err, res, hand; /* hand: where a fork ahead gets its payload; -1 when handed over */
  int forks;                   /* where forks of a forkable job say hello */
  int listener;                /* where the kernel asks whether a process of it, or of a fork of it, may fork itself */
  int door_open;               /* its user namespace may have others in it: see fork.c */
  int tell;                    /* where the init of a forkable job, or of a fork, tells that its main process ended */
  int child_in, child_out, child_err, child_res, child_hand, child_extra, child_forks;
  int pty_master;
  struct buffer obuf, ebuf, rbuf;
  const char *give; /* payload still to be handed over */
  size_t give_len;
  uint64_t written, answered, records; /* answered: bytes of the result pipe */
  struct { /* where the result pipe stands: see follow_records */
    uint32_t got, len, left;
    union {
      unsigned char bytes[8];
      uint64_t base_ns;
      uint32_t length;
    } part;
    unsigned char first[2];
  } scan;
  uint64_t started_ns, deadline_ns, cpu_base_ns;
  uint32_t ended, hits, said_end, based;
  pid_t main_outside; /* its main process as we number it, where known */
  uint64_t watched_peak_kb, watched_cpu_ns;
  uint64_t kernel_kb; /* of the kernel's own memory, when last looked at: see watch.c */
  uint64_t sockets_kb; /* in the buffers of its sockets */
  uint64_t slabs_kb;  /* of the whole machine, when the job was first seen */
  /* written by the job's init, which shares our memory */
  volatile int ready, go, mapped, main_pid, wstatus, exec_errno, failed_errno;
  const char *volatile failed_step;
  void *stack;
  struct job *above; /* the forkable job inside whose user namespace this one lives */
  int adopted;       /* a fork of `above`: its init is not our child */
  int waiting;       /* made ahead: its init has everything ready for a command and waits for one */
  int sealed;        /* by confine_ahead, which left this */
  int ruleset;
  volatile int alone; /* said by such an init: the command has ended and left nothing running */
  struct rusage usage; /* and what it used */
  int condemned;     /* answered; killed at its deadline */
  int closing;       /* ends when the last fork inside it does */
  int holds, source, over; /* the view that its init holds, the one whose files that has, and whether it takes over */
};
extern struct job *jobs; /* MAX_JOBS of them, in the vault: a fork has none */
extern int jobs_end; /* no job is used from here on */

/* confine.c */
const char *confine(const struct spawn *spec, int counted); /* NULL, or the step that failed with errno set */
const char *confine_ahead(const struct spawn *spec, int *ruleset); /* the same in two steps: by the init, and by its command */
const char *confine_after(const struct spawn *spec, int counted, int ruleset);
void measure_data(void);
int drop_capabilities(uint64_t keep);
int drop_bounds(uint64_t keep);
int held_capabilities(uint64_t *held);
int keep_across_exec(uint64_t capabilities);
int stay_on_cpu(int cpu);
int landlock_abi(void); /* 0: the kernel has none; -1: it could not say, and nothing may run without */

/* job.c */
int job_spawn(struct job *job, int (*become)(struct job *)); /* 0, or -1 with failed_step and errno set */
int job_go(struct job *job); /* hands a command to an init that waits; as job_spawn */
int job_exec(struct job *job);                               /* `become` for KIND_EXEC */
int job_python(struct job *job);                             /* and for Python of an image */
extern int bell; /* rung by an init that is `alone` */
void job_kill(struct job *job, uint32_t why);
void job_free(struct job *job);
void slot_read_hits(struct job *job);
int slot_join(struct job *job, pid_t pid);
int slot_adopt(struct job *job, pid_t pid); /* a slot for a process that another job's init has made */
int view_add(int view, pid_t pid);
int view_pidfd(int view); /* or -1 */
int mount_terminals(void);

/* image.c: what returns text returns NULL, or the step that failed with errno set */
int image_upper(const char *options);
int image_overlay(int count);
int image_open(int root, const char *path, int make, int file);
const char *image_enter(const struct spawn *spec);
const char *image_fresh(void);
extern int image_mounter; /* a socket to it */
_Noreturn void mounter_main(int line, const char *options);
const char *image_prepare(int view, int source, int over);
void image_forget(int view);
void image_take_over(int view, int source);
int image_view_of(int view); /* the one that has taken over from it, or itself */
const char *image_remember(int view);
const char *image_view(int view, int source, uint64_t bytes, int over);
const char *image_copy(int view, int source, int *tree);
const char *image_attach(int tree);
const char *image_replace(void);
int image_map(pid_t pid);
int image_root(void);
int image_become(int sealed);
int image_config(const char *body, size_t len);

/* fork.c */
int copy_whole(int from, int to); /* with owners, attributes and whiteouts */
int own_copy(const char *path, const char *mode, uint64_t bytes, int before, int with_files);
int forks_listen(void); /* called by a process that will be a forkable guest; its listener, or -1 */
void forks_asked(struct job *job);
void forks_enforce_time(uint64_t now);
uint64_t forks_next_ns(void);
void forks_cancel(struct job *job, int number, const char *step);
int forks_command(const struct head *head, const char *body, int *fds, int nfds);
void forks_hello(struct job *job);
void forks_farewell(struct job *job);
void forks_ended(struct job *above); /* one that lived inside it has */
struct job *view_owner(int view);
int view_close(int view);

/* network.c */
int loopback_up(void);
int route_everything(void); /* to the loopback interface; needs CAP_NET_ADMIN */
int make_socket(const struct socket_request *request); /* a descriptor, or -1 */

/* vault.c */
void *vault_take(size_t size); /* NULL with errno set, also where the kernel cannot keep it from forks */
void vault_give(void *data, size_t size); /* of the size it was taken with */
size_t vault_bytes(void);

/* serve.c */
struct job *job_new(uint32_t id, const struct spawn *spec);
struct job *job_by_id(uint32_t id);
typedef int (*fork_job)(struct job *job);
int serve(int control, fork_job become);
void job_main_ended(struct job *job); /* reports the end of one whose init stays for the forks inside it */
uint64_t now_ns(void);
int control_fd(void);
int send_frame(uint16_t op, uint32_t id, const void *a, size_t alen, const void *b, size_t blen, int fd);
void send_error(uint32_t id, int number, const char *step);

/* watch.c */
#define WATCH_EVERY_NS 20000000ull
uint64_t watch_jobs(void); /* when to look again: sooner where a job could reach its limit sooner */
int count_forks(struct job *job);
uint64_t reaped_cpu_ns(pid_t pid); /* of children that it has waited for, by the tick */
int tree_kill_around(struct job *job);

