/* harena-box PLAN-FD CONTROL-FD: makes one box and serves as its init.
 *
 * The first process stays outside as the box's keeper: it maps the user, waits, and removes what the box had on the
 * host (cgroups, its record) when it ends, however it ends. The second is pid 1 of the box: it builds the root that the
 * plan describes, gives up every capability and serves the host's requests until the host is gone.
 *
 * A plan is a list of NUL-ended words, written by harena/backends/local/launch/plan.py, which decides what is visible; this
 * file only carries it out:
 *   uid OUTER            who the guest is on the host (given by root alone; others are themselves)
 *   host NAME            its host name
 *   network on           every address is routed to its loopback interface, where the host listens
 *   map uid|gid LINES    of a box with many ids: for its user namespace, instead of the one user
 *   helper uid|gid PATH  the program (newuidmap, newgidmap) that writes the map, where the host's user may not
 *   bind SOURCE TARGET ro|rw|dev|layer
 *   image COUNT OPTIONS  mounts the overlay of this many layers, see image.c; OPTIONS are those of the tmpfs for changes
 *   tmpfs TARGET OPTIONS | dir TARGET MODE | link TEXT TARGET | file TARGET TEXT | proc TARGET
 *   ro TARGET            makes one mount of the box read-only
 *   home PATH            a cgroup (v2) that the keeper makes the init's namespace in: the kernel moves processes only
 *                        among cgroups that the namespace shows, so this must be above those of the jobs
 *   join PATH            a cgroup.procs file to write the init into
 *   back PATH            the cgroup.procs file that the keeper came from
 *   cgroup PATH | record PATH    to be removed by the keeper
 *
 * One file, however long: its steps build one root and give up rights in one order, which is read from top to bottom. */
#include "harena.h"
#include <grp.h>
#include <linux/capability.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#ifndef SYS_mount_setattr
#define SYS_mount_setattr 442
#endif
#define ROOT "/tmp" /* where the new root is mounted until it becomes the root; any folder that exists everywhere */
/* plan.py refuses what is longer */
#define MAX_WORDS 8192
#define MAX_PLAN (1 << 20)
#define MAX_BINDS 1024

static char *words[MAX_WORDS];
static int word_count, sources[MAX_BINDS], trees[MAX_BINDS], source_count, box_control;
static int own_quotas; /* the kernel charges what the box uses to a user of its own, not to the one who starts it */
static const char *outer_uid;
static const char *id_maps[2], *id_helpers[2]; /* of users and groups */

struct attributes { /* struct mount_attr, which older headers lack */
  uint64_t set, clear, propagation, userns_fd;
};
#define ATTR_RDONLY 1
#define ATTR_NOSUID 2
#define ATTR_NODEV 4
#define ATTR_IDMAP 0x100000

static int arguments_of(const char *verb) {
  static const struct {
    const char *verb;
    int arguments;
  } verbs[] = {{"uid", 1},  {"host", 1}, {"bind", 3},   {"tmpfs", 2},  {"dir", 2},   {"link", 2},
               {"file", 2}, {"proc", 1}, {"cgroup", 1}, {"record", 1}, {"join", 1}, {"ro", 1},
               {"home", 1}, {"back", 1}, {"map", 2},    {"helper", 2}, {"image", 2}, {"network", 1}};
  for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
    if (!strcmp(verb, verbs[i].verb)) return verbs[i].arguments;
  return -1;
}

static int next_step(int at) { return at + 1 + arguments_of(words[at]); }

/* Tells the host which step failed; it raises IsolationUnavailable with it. */
static void die(const char *step, const char *what) {
  char text[512];
  int32_t number = errno;
  struct head head = {MAGIC, OP_ERROR, 0, 0, 0};
  int len = snprintf(text, sizeof text, "%s%s%s", step, *what ? " " : "", what);
  if (len >= (int)sizeof text) len = sizeof text - 1;
  head.len = sizeof number + len;
  struct iovec parts[3] = {{&head, sizeof head}, {&number, sizeof number}, {text, len}};
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
  if (sendmsg(box_control, &message, MSG_NOSIGNAL) < 0) _exit(112);
  _exit(111);
}

/* In a user namespace with nobody else in it, root is an ordinary user of the host. */
static int only_one_user(void) {
  unsigned long inside, outside, count = 0;
  FILE *map = fopen("/proc/self/uid_map", "re");
  int read = map ? fscanf(map, "%lu %lu %lu", &inside, &outside, &count) : 0, more = map && fscanf(map, "%lu", &inside) == 1;
  if (map) fclose(map);
  return read == 3 && count == 1 && !more;
}

static void read_plan(int fd) {
  static char plan[MAX_PLAN + 2];
  size_t len = 0;
  for (ssize_t got; len <= MAX_PLAN && (got = read(fd, plan + len, MAX_PLAN + 1 - len)) != 0; len += got)
    if (got < 0) die("read the plan", "");
  close(fd);
  errno = E2BIG;
  if (len > MAX_PLAN) die("carry out so long a plan", "");
  for (char *at = plan; at < plan + len; at += strlen(at) + 1) {
    if (word_count == MAX_WORDS) die("carry out a plan of so many words", "");
    words[word_count++] = at;
  }
  for (int at = 0; at < word_count; at = next_step(at)) {
    errno = EINVAL;
    if (arguments_of(words[at]) < 0 || next_step(at) > word_count) die("understand the plan at", words[at]);
    if (!strcmp(words[at], "uid")) outer_uid = words[at + 1];
    if (!strcmp(words[at], "map")) id_maps[!strcmp(words[at + 1], "gid")] = words[at + 2];
    if (!strcmp(words[at], "helper")) id_helpers[!strcmp(words[at + 1], "gid")] = words[at + 2];
  }
  if (geteuid() == 0 && (!outer_uid || !strtoul(outer_uid, NULL, 10)) && !only_one_user()) {
    errno = EPERM;
    die("start as root without a user of its own", "");
  }
}

/* ---- the box's init ---- */

static void open_sources(void) {
  for (int at = 0; at < word_count; at = next_step(at)) {
    if (strcmp(words[at], "bind")) continue;
    sources[source_count] = trees[source_count] >= 0 ? trees[source_count] : open(words[at + 1], O_PATH | O_CLOEXEC);
    if (sources[source_count++] < 0) die("open", words[at + 1]);
  }
}

static const char *inside(const char *target) {
  static char path[4200];
  snprintf(path, sizeof path, ROOT "%s", target);
  return path;
}

static void make_parents(const char *path) {
  char part[4200];
  snprintf(part, sizeof part, "%s", path);
  for (char *at = part + strlen(ROOT) + 1; (at = strchr(at, '/')); at++) {
    *at = 0;
    if (mkdir(part, 0755) && errno != EEXIST) die("make the folder", part);
    *at = '/';
  }
}

static void attach_source(int source, int is_tree, const char *path) {
  char link[64];
  if (is_tree) {
    if (syscall(SYS_move_mount, source, "", AT_FDCWD, path, 4 /* MOVE_MOUNT_F_EMPTY_PATH */)) die("mount", path);
    return;
  }
  snprintf(link, sizeof link, "/proc/self/fd/%d", source);
  if (mount(link, path, NULL, MS_BIND | MS_REC, NULL)) die("bind", path);
}

static void cover_folder(const char *path);
static int cover_file(int source, int parent, const char *name, const char *path);
static int shares_inodes, parents[MAX_BINDS]; /* the folders of sources that are files */

static void bind_source(int source, int is_tree, const char *path, const char *mode, int parent, const char *name) {
  struct stat info;
  if (fstat(source, &info)) die("look at the source of", path);
  if (S_ISDIR(info.st_mode)) {
    if (mkdir(path, 0755) && errno != EEXIST) die("make the folder", path);
  } else {
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) die("make the file", path);
    close(fd);
  }
  int file = S_ISREG(info.st_mode) && !strcmp(mode, "ro");
  int covered = file ? cover_file(source, parent, name, path) : -1;
  if (covered > 0) return; /* a copy, on the box's root */
  if (covered < 0) attach_source(source, is_tree, path);
  if (covered < 0 && file) shares_inodes = 1;
  struct attributes attributes = {.set = ATTR_NOSUID};
  if (strcmp(mode, "dev")) attributes.set |= ATTR_NODEV;
  if (!strcmp(mode, "ro") || !strcmp(mode, "layer")) attributes.set |= ATTR_RDONLY;
  if (syscall(SYS_mount_setattr, AT_FDCWD, path, 0x8000 /* AT_RECURSIVE */, &attributes, sizeof attributes))
    die("protect (mount_setattr, Linux 5.12)", path);
  if (S_ISDIR(info.st_mode) && !strcmp(mode, "ro")) cover_folder(path);
}

/* ---- inodes of its own ----
 * Locks, leases and watches belong to an inode. A guest that locks a file of the host's /usr slows down whoever opens it
 * there, and one that watches it learns what is executed. An overlay of a read-only folder has inodes of its own in front of
 * the same pages. Where there can be none (a mount inside the folder, a kernel that refuses), the host is told, and lets
 * the box lock and watch nothing. Devices and writable mounts are the host's in any case. */

#define NOTHING ROOT "/.harena/nothing" /* an overlay needs a second layer, and needs it as long as it lives */
#define COPY_MOST (1 << 20)

static struct stage {
  dev_t dev;
  ino_t ino;
  char path[64];
} stages[64];
static int stage_count;

static int overlay(int lower, const char *path) {
  char options[128];
  snprintf(options, sizeof options, "lowerdir=/proc/self/fd/%d:%s", lower, NOTHING);
  return mount("overlay", path, "overlay", MS_RDONLY | MS_NOSUID | MS_NODEV, options);
}

static int has_mounts_below(const char *path) {
  static char *table;
  static size_t room;
  FILE *file = fopen("/proc/self/mountinfo", "re");
  size_t length = strlen(path);
  int found = !file;
  while (file && !found && getline(&table, &room, file) > 0) {
    char *at = table;
    for (int field = 0; at && field < 4; field++) at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL;
    found = at && !strncmp(at, path, length) && at[length] == '/';
  }
  if (file) fclose(file);
  return found;
}

static void cover_folder(const char *path) {
  int lower = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (lower < 0 || has_mounts_below(path) || overlay(lower, path)) shares_inodes = 1;
  if (lower >= 0) close(lower);
}

/* An overlay of the folder that the file lies in; NULL where there can be none. */
static const struct stage *stage_of(int parent) {
  struct stat info;
  if (parent < 0 || fstat(parent, &info)) return NULL;
  for (int i = 0; i < stage_count; i++)
    if (stages[i].dev == info.st_dev && stages[i].ino == info.st_ino) return *stages[i].path ? &stages[i] : NULL;
  if (stage_count == sizeof stages / sizeof *stages) return NULL;
  struct stage *stage = &stages[stage_count];
  *stage = (struct stage){info.st_dev, info.st_ino, ""};
  snprintf(stage->path, sizeof stage->path, ROOT "/.stage%d", stage_count++);
  if (mkdir(stage->path, 0700) || overlay(parent, stage->path)) *stage->path = 0;
  return *stage->path ? stage : NULL;
}

static int same_file(const struct stat *a, const struct stat *b) { /* the overlay has a device number of its own */
  return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int copy_file(int source, off_t size, const char *path) {
  char link[64], chunk[1 << 14];
  ssize_t got = -1;
  snprintf(link, sizeof link, "/proc/self/fd/%d", source);
  int from = size > COPY_MOST ? -1 : open(link, O_RDONLY | O_CLOEXEC), to = from < 0 ? -1 : open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
  while (to >= 0 && (got = read(from, chunk, sizeof chunk)) > 0)
    if (write(to, chunk, got) != got) got = -1;
  if (from >= 0) close(from);
  if (to >= 0) close(to);
  return got ? -1 : 0;
}

/* Shows a file with an inode of its own. `path` is there, and empty. */
static int cover_file(int source, int parent, const char *name, const char *path) {
  char staged[4200];
  struct stat theirs, ours;
  if (fstat(source, &theirs)) return -1;
  const struct stage *stage = stage_of(parent);
  const char *last = strrchr(name, '/');
  snprintf(staged, sizeof staged, "%s/%s", stage ? stage->path : "", last ? last + 1 : name);
  if (stage && !lstat(staged, &ours) && S_ISREG(ours.st_mode) && same_file(&theirs, &ours))
    return mount(staged, path, NULL, MS_BIND, NULL);
  return copy_file(source, theirs.st_size, path) || chmod(path, theirs.st_mode & 0755) ? -1 : 1;
}

static void open_parents(void) {
  char folder[4200];
  for (int at = 0, bind = 0; at < word_count; at = next_step(at)) {
    struct stat info;
    if (strcmp(words[at], "bind")) continue;
    parents[bind] = -1;
    if (!strcmp(words[at + 3], "ro") && !fstat(sources[bind], &info) && S_ISREG(info.st_mode)) {
      snprintf(folder, sizeof folder, "%s", words[at + 1]);
      char *end = strrchr(folder, '/');
      if (end) *end = 0;
      parents[bind] = open(end == folder ? "/" : folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    }
    bind++;
  }
}

static void clear_stages(void) {
  for (int i = 0; i < stage_count; i++) {
    if (*stages[i].path && umount2(stages[i].path, MNT_DETACH)) die("unmount", stages[i].path);
    snprintf(stages[i].path, sizeof stages[i].path, ROOT "/.stage%d", i);
    if (rmdir(stages[i].path)) die("remove", stages[i].path);
  }
  for (int i = 0; i < source_count; i++)
    if (parents[i] >= 0) close(parents[i]);
}

static void write_text(const char *path, const char *text) {
  int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC | O_EXCL, 0644);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die("write", path);
  close(fd);
}

static void protect(const char *path) {
  struct attributes attributes = {.set = ATTR_RDONLY | ATTR_NOSUID};
  if (syscall(SYS_mount_setattr, AT_FDCWD, path, 0, &attributes, sizeof attributes)) die("protect", path);
}

static const char *upper_options;

static void start_mounter(void) {
  static char options[160];
  int line[2];
  if (!upper_options) return;
  snprintf(options, sizeof options, id_maps[0] ? "%s,uid=%d,gid=%d" : "%s", upper_options, IDS_FIRST, IDS_FIRST);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, line)) die("make a socket", "");
  pid_t pid = fork();
  if (pid < 0) die("start the mounter", "");
  if (pid == 0) mounter_main(line[1], options);
  close(line[1]);
  image_mounter = line[0];
}

static void mount_image(int layers, const char *options) {
  if (chdir(ROOT "/.harena/layers") || mkdir("../upper", 0755) || mkdir("../uppers", 0755) || mkdir("../root", 0755))
    die("make the folders of the image", "");
  if (mount("tmpfs", "../uppers", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=777")) die("mount a place for forks", "");
  upper_options = options;
  if (image_upper(options)) die("mount a place for changes of the image", "");
  if (image_overlay(layers)) die("mount the image (an overlay in a user namespace, Linux 5.11)", "");
  if (chdir("/")) die("leave the folder of the layers", "");
}

/* Where a target really is. In an image, links are followed as its own processes would follow them, not as ours would. */
static const char *target_of(const char *target, int file) {
  static char path[4200];
  char link[64];
  size_t length = strlen(IMAGE_ROOT "/");
  if (strncmp(target, IMAGE_ROOT "/", length)) {
    make_parents(inside(target));
    return inside(target);
  }
  int root = open(ROOT IMAGE_ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC), found = root < 0 ? -1 : image_open(root, target + length - 1, 1, file);
  if (found < 0) die("make in the image", target);
  snprintf(link, sizeof link, "/proc/self/fd/%d", found);
  ssize_t got = readlink(link, path, sizeof path - 1);
  if (got <= 0 || got >= (ssize_t)sizeof path - 1) die("find in the image", target);
  path[got] = 0;
  errno = EXDEV;
  if (strncmp(path, ROOT IMAGE_ROOT "/", strlen(ROOT IMAGE_ROOT "/"))) die("stay in the image at", target);
  close(root);
  close(found);
  return path;
}

static void carry_out(int at, int *bound) {
  const char *verb = words[at], *first = words[at + 1], *second = words[at + 2];
  if (!strcmp(verb, "uid") || !strcmp(verb, "cgroup") || !strcmp(verb, "record") || !strcmp(verb, "join") ||
      !strcmp(verb, "home") || !strcmp(verb, "back") || !strcmp(verb, "map") || !strcmp(verb, "helper") ||
      !strcmp(verb, "network"))
    return;
  if (!strcmp(verb, "image")) return mount_image(atoi(first), second);
  if (!strcmp(verb, "ro")) return protect(inside(first));
  if (!strcmp(verb, "host")) {
    if (sethostname(first, strlen(first))) die("name the host", first);
    return;
  }
  struct stat info;
  int bind = !strcmp(verb, "bind"), named = !strcmp(verb, "link") || !strcmp(verb, "file"), folder = 1;
  if (bind && fstat(sources[*bound], &info)) die("look at", first);
  if (bind) folder = S_ISDIR(info.st_mode);
  const char *path = named ? inside(!strcmp(verb, "link") ? second : first) : target_of(bind ? second : first, !folder);
  if (named) make_parents(path);
  if (!strcmp(verb, "bind")) {
    bind_source(sources[*bound], trees[*bound] >= 0, path, words[at + 3], parents[*bound], words[at + 1]);
    (*bound)++;
  }
  else if (!strcmp(verb, "link")) {
    if (symlink(first, path)) die("link", path);
  } else if (!strcmp(verb, "file")) write_text(path, second);
  else if (mkdir(path, !strcmp(verb, "dir") ? strtol(second, NULL, 8) : 0755) && errno != EEXIST) die("make the folder", path);
  else if (!strcmp(verb, "tmpfs")) {
    if (mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, second)) die("mount tmpfs", path);
  } else if (!strcmp(verb, "proc")) {
    if (mount("proc", path, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL)) die("mount proc", path);
  }
}

static void start_network(void) {
  if (loopback_up()) die("start the loopback interface", "");
  for (int at = 0; at < word_count; at = next_step(at))
    if (!strcmp(words[at], "network") && route_everything()) die("route to the loopback interface", "");
}

static void become_user(int id) {
  if (outer_uid && (setgroups(0, NULL) || setresgid(id, id, id) || setresuid(id, id, id))) die("become the guest's user", "");
  if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)) die("stay readable to itself", "");
}

static void build_root(void) {
  int bound = 0;
  if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) die("detach the mounts", "");
  open_sources();
  open_parents();
  become_user(id_maps[0] ? IDS_FIRST : GUEST_ID);
  umask(0);
  if (mount("tmpfs", ROOT, "tmpfs", MS_NOSUID | MS_NODEV, "size=32m,mode=755")) die("mount the root", "");
  if (mkdir(ROOT "/.harena", 0755) || mkdir(NOTHING, 0555)) die("make the folder", NOTHING);
  for (int at = 0; at < word_count; at = next_step(at)) carry_out(at, &bound);
  for (int i = 0; i < source_count; i++) close(sources[i]);
  clear_stages();
  if (chdir(ROOT) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/")) die("change the root", "");
  protect("/");
  umask(022);
  if (id_maps[0]) become_user(GUEST_ID); /* whom no guest is: the files belong to the root among their ids */
}

/* An ordinary user's boxes share the user's quotas with everything else of that user. A namespace remembers the limit of
 * whoever makes it, for all that its maker uses: so all boxes together stay below a half of the quota, and one box, whose
 * init makes the namespaces of its jobs, below an eighth. */
static void share_quotas(unsigned part) {
  static const int which[] = {RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE};
  for (size_t i = 0; i < sizeof which / sizeof *which; i++) {
    struct rlimit limit;
    if (getrlimit(which[i], &limit)) die("read limits", "");
    if (limit.rlim_max == RLIM_INFINITY || limit.rlim_cur <= limit.rlim_max / part) continue;
    limit.rlim_cur = limit.rlim_max / part;
    if (setrlimit(which[i], &limit)) die("share limits", "");
  }
}

/* Each execution takes half a dozen descriptors of ours; guests get a limit of their own. */
static void use_all_descriptors(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit)) die("read limits", "");
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit)) die("use all descriptors", "");
}

static void share_inotify(void) {
  static const char *const limits[][2] = {{"/proc/sys/fs/inotify/max_user_instances", "/proc/sys/user/max_inotify_instances"},
                                          {"/proc/sys/fs/inotify/max_user_watches", "/proc/sys/user/max_inotify_watches"}};
  for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
    char text[24] = "";
    int from = open(limits[i][0], O_RDONLY | O_CLOEXEC);
    if (from < 0 && errno == ENOENT) continue; /* a kernel without inotify */
    if (from < 0 || read(from, text, sizeof text - 1) <= 0) die("read", limits[i][0]);
    close(from);
    snprintf(text, sizeof text, "%ld", atol(text) / 8 + 1);
    int to = open(limits[i][1], O_WRONLY | O_CLOEXEC);
    if (to < 0 || write(to, text, strlen(text)) < 0) die("write", limits[i][1]);
    close(to);
  }
}

static int init_box(int go) {
  char byte;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL)) die("follow the keeper", "");
  if (read(go, &byte, 1) != 1) _exit(111); /* the keeper has said why */
  close(go);
  start_network();
  build_root();
  start_mounter();
  share_inotify();
  share_quotas(8);
  use_all_descriptors();
  /* changing the user cleared this */
  if (prctl(PR_SET_PDEATHSIG, SIGKILL)) die("follow the keeper", "");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || drop_capabilities(id_maps[0] ? IDS_KEPT : 0)) die("give up capabilities", "");
  for (int fd = 0; fd < 3; fd++) {
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, fd) < 0) die("open /dev/null", "");
    if (null != fd) close(null);
  }
  if (stay_on_cpu(sched_getcpu())) die("stay on a processor", "");
  struct __attribute__((packed)) {
    struct head head;
    char own_inodes;
  } hello = {{MAGIC, OP_PONG, 0, 0, 1}, !shares_inodes};
  if (send(box_control, &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) return 1;
  serve(box_control, NULL);
  return 0;
}

/* ---- the keeper ---- */

static void write_map(pid_t pid, const char *file, const char *text) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die("write", path);
  close(fd);
}

/* The guest, in an image its root, as the host numbers it: the map's line for IDS_FIRST is the last one. */
static unsigned long guest_outside(int group) {
  unsigned long outside = strtoul(outer_uid, NULL, 10);
  const char *line = id_maps[group] ? strstr(id_maps[group], IDS_FIRST_TEXT " ") : NULL;
  return line ? strtoul(line + strlen(IDS_FIRST_TEXT " "), NULL, 10) : outside;
}

/* A namespace in which the owner of a folder is the guest, for mounts that show it so. */
static int owner_as_guest(const struct stat *info) {
  char map[64], path[64];
  pid_t pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) {
    pause();
    _exit(0);
  }
  if (pid < 0) return -1;
  snprintf(map, sizeof map, "%u %lu 1", (unsigned)info->st_uid, guest_outside(0));
  write_map(pid, "uid_map", map);
  snprintf(map, sizeof map, "%u %lu 1", (unsigned)info->st_gid, guest_outside(1));
  write_map(pid, "gid_map", map);
  snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  kill(pid, SIGKILL);
  while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
  return fd;
}

/* Where root is the host, the guest is a user that owns nothing: in a writable mount it stands for the folder's owner. */
static void map_owner(int tree, const char *source) {
  struct stat info;
  struct attributes attributes = {.set = ATTR_IDMAP};
  if (stat(source, &info)) die("open", source);
  int owner = owner_as_guest(&info);
  if (owner < 0) die("map the owner of", source);
  attributes.userns_fd = owner;
  if (syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attributes, sizeof attributes))
    die("map the owner (idmapped mounts, Linux 5.12) of", source);
  close(owner);
}

/* Root takes the sources out of its own mounts, since the box's user may not reach them. Root of a user namespace may
 * have no right to: there the init opens them, as root. */
static void take_sources(void) {
  own_quotas = outer_uid != NULL;
  for (int at = 0, bind = 0; at < word_count; at = next_step(at)) {
    if (strcmp(words[at], "bind")) continue;
    errno = E2BIG;
    if (bind == MAX_BINDS) die("mount so many folders", "");
    int writable = !strcmp(words[at + 3], "rw"), tree = -1;
    if (outer_uid && (own_quotas || writable)) {
      unsigned flags = 1 /* OPEN_TREE_CLONE */ | O_CLOEXEC | (writable ? 0 : 0x8000 /* AT_RECURSIVE */);
      tree = syscall(SYS_open_tree, AT_FDCWD, words[at + 1], flags);
      if (tree < 0 && (writable || errno != EPERM || bind)) die("open", words[at + 1]);
      if (tree < 0) own_quotas = 0;
      else if (writable) map_owner(tree, words[at + 1]);
    }
    trees[bind++] = tree;
  }
}

/* newuidmap PID, then the numbers of the map. */
static void map_with_helper(pid_t pid, const char *program, const char *map) {
  static char text[1024];
  char number[24], *words[64] = {(char *)program, number}, *envp[] = {NULL};
  int count = 2, status;
  snprintf(number, sizeof number, "%d", (int)pid);
  snprintf(text, sizeof text, "%s", map);
  for (char *word = strtok(text, " \n"); word && count < 63; word = strtok(NULL, " \n")) words[count++] = word;
  pid_t helper = vfork();
  if (helper == 0) {
    execve(program, words, envp);
    _exit(127);
  }
  if (helper < 0) die("start", program);
  while (waitpid(helper, &status, 0) < 0 && errno == EINTR) {}
  errno = EPERM;
  if (!WIFEXITED(status) || WEXITSTATUS(status)) die("map its ids with", program);
}

static void map_user(pid_t pid) {
  char map[64];
  for (int i = 0; i < 2 && id_maps[i]; i++) {
    if (id_helpers[i]) map_with_helper(pid, id_helpers[i], id_maps[i]);
    else write_map(pid, i ? "gid_map" : "uid_map", id_maps[i]);
  }
  if (id_maps[0]) return;
  if (!outer_uid) write_map(pid, "setgroups", "deny");
  snprintf(map, sizeof map, "%d %s 1", GUEST_ID, outer_uid ? outer_uid : "");
  if (!outer_uid) snprintf(map, sizeof map, "%d %d 1", GUEST_ID, (int)geteuid());
  write_map(pid, "uid_map", map);
  if (!outer_uid) snprintf(map, sizeof map, "%d %d 1", GUEST_ID, (int)getegid());
  write_map(pid, "gid_map", map);
}

static void write_file(const char *path, const char *text, const char *step) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || write(fd, text, strlen(text)) < 0) die(step, path);
  close(fd);
}

/* Inotify instances, queued signals, timers and the like are charged, up the line, to whoever made the namespaces. With
 * the capabilities of root, since hosts may not let others make any. */
static pid_t clone_box(int flags) {
  struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct held[2];
  uid_t user = own_quotas ? strtoul(outer_uid, NULL, 10) : geteuid();
  if (syscall(SYS_capget, &head, held)) die("read capabilities", "");
  if (own_quotas && syscall(SYS_setresuid, -1, user, -1)) die("become the box's user", "");
  for (int i = 0; i < 2; i++) held[i].effective = held[i].permitted;
  if (own_quotas && syscall(SYS_capset, &head, held)) die("keep capabilities", "");
  pid_t pid = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
  int number = errno;
  if (pid != 0 && own_quotas && syscall(SYS_setresuid, -1, 0, -1)) die("be root again", "");
  errno = number;
  return pid;
}

static void enter_home(void) {
  char path[4096];
  for (int at = 0; at < word_count; at = next_step(at)) {
    if (strcmp(words[at], "home")) continue;
    snprintf(path, sizeof path, "%s/cgroup.procs", words[at + 1]);
    write_file(path, "0", "enter the cgroup");
  }
}

/* A cgroup (v2) that gives controllers to those below it has no process of its own: all leave before it does. */
static void join_cgroups(pid_t pid) {
  char text[16], path[4096];
  snprintf(text, sizeof text, "%d", (int)pid);
  for (int at = 0; at < word_count; at = next_step(at)) {
    if (!strcmp(words[at], "join")) write_file(words[at + 1], text, "join the cgroup");
    if (!strcmp(words[at], "back")) write_file(words[at + 1], "0", "leave the cgroup");
  }
  for (int at = 0; at < word_count; at = next_step(at)) {
    if (strcmp(words[at], "home")) continue;
    snprintf(path, sizeof path, "%s/cgroup.subtree_control", words[at + 1]);
    write_file(path, "+memory +pids", "give controllers to the cgroup");
  }
}

static void clean_up(void) {
  for (int at = 0; at < word_count; at = next_step(at)) {
    if (!strcmp(words[at], "record")) unlink(words[at + 1]);
    if (strcmp(words[at], "cgroup")) continue;
    for (int tries = 0; tries < 200 && rmdir(words[at + 1]) && errno == EBUSY; tries++) usleep(1000);
  }
}

/* The cgroups that jobs made below ours are empty now, and go first. */
static void remove_slots(void) {
  for (int at = 0; at < word_count; at = next_step(at)) {
    if (strcmp(words[at], "cgroup")) continue;
    for (int pass = 0; pass < 2; pass++) {
      int fd = open(words[at + 1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (fd < 0) break;
      char entries[32768];
      for (long got; (got = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0;)
        for (long i = 0; i < got;) {
          struct {
            uint64_t ino, off;
            uint16_t len;
            uint8_t type;
            char name[];
          } *entry = (void *)(entries + i);
          if (entry->type == 4 && entry->name[0] != '.')
            for (int tries = 0; tries < 200 && unlinkat(fd, entry->name, AT_REMOVEDIR) && errno == EBUSY; tries++) usleep(1000);
          i += entry->len;
        }
      close(fd);
    }
  }
}

/* harena-init FAREWELL-FD PID: the init of a fork's namespaces. Reaps, tells the end of the interpreter, and stays until
 * it is killed: the fork's files are its mounts, and forks of the fork live inside. */
static _Noreturn void init_of_fork(int farewell, pid_t interpreter) {
  int status;
  for (;;) {
    pid_t pid = waitpid(-1, &status, __WALL);
    if (pid < 0 && errno == ECHILD) pause();
    struct farewell word = {.status = status};
    if (pid == interpreter) send(farewell, &word, sizeof word, MSG_NOSIGNAL); /* fails where it was killed, and so reported before */
  }
}

int main(int argc, char **argv) {
  int go[2], status;
  if (argc == 3 && !strcmp(argv[0], "harena-init")) init_of_fork(atoi(argv[1]), atoi(argv[2]));
  if (argc != 3) return fprintf(stderr, "harena-box is started by harena\n"), 2;
  box_control = atoi(argv[2]);
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL); /* what the host ignores, the guest need not */
  signal(SIGPIPE, SIG_IGN);
  read_plan(atoi(argv[1]));
  syscall(SYS_close_range, box_control + 1, ~0u, 0);
  if (fcntl(box_control, F_SETFD, FD_CLOEXEC) || pipe2(go, O_CLOEXEC)) die("prepare", "");
  setsid();
  struct sched_param ordinary = {0}; /* a host with real-time priority must not pass it on: a loop would take the core */
  /* By its number: musl refuses the function. */
  if (syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &ordinary)) die("leave the real-time scheduler", "");
  take_sources();
  enter_home();
  share_quotas(2);
  int flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;
  pid_t pid = clone_box(flags);
  if (pid < 0) die("make namespaces (user, pid, mount, net, ipc, uts, cgroup)", "");
  if (pid == 0) {
    close(go[1]);
    return init_box(go[0]);
  }
  close(go[0]);
  for (int i = 0; i < MAX_BINDS; i++)
    if (trees[i] > 0) close(trees[i]);
  map_user(pid);
  join_cgroups(pid);
  if (write(go[1], "x", 1) != 1) die("start the init", "");
  close(go[1]);
  signal(SIGINT, SIG_IGN), signal(SIGTERM, SIG_IGN), signal(SIGHUP, SIG_IGN);
  syscall(SYS_close_range, 0, ~0u, 0);
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  remove_slots();
  clean_up();
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
