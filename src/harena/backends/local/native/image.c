/* Boxes whose root is an image. The box's own root, where init and zygote live, shows nothing of the image but at
 * IMAGE_ROOT, so neither ever runs or reads a file of it: a guest may be root in there, and write anything. A job enters
 * it with its init, and cannot leave: it has no descriptor outside, and the calls for it need capabilities that it lacks.
 *
 *   /.harena/layers/0, 1, …   the layers, the lowest first; the last one is the box's own: hosts, mount points
 *   /.harena/upper            what guests change
 *   /.harena/uppers/1, …      the same of other views; one that was frozen is a layer of several views
 *   /.harena/root             the overlay of all that */
#include "harena.h"
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define LAYERS_FOLDER "/.harena/layers"

/* The current folder of what follows is that of the layers: so their names are short, and fit into the page that mount()
 * takes. */

int image_upper(const char *options) {
  if (mount("tmpfs", "../upper", "tmpfs", MS_NOSUID | MS_NODEV, options)) return -1;
  return mkdir("../upper/files", 0755) || mkdir("../upper/work", 0700) ? -1 : 0;
}

struct places { /* the files of a view. Number 0 is ../upper, all other numbers are below ../uppers */
  int known, upper, frozen[MAX_FROZEN], frozen_count;
  int workspace, temporary; /* descriptors + 1; 0: none */
};
static struct places places[MAX_VIEWS];

static int name_of(int upper, char *text, size_t room) {
  return upper ? snprintf(text, room, "../uppers/%d", upper) : snprintf(text, room, "../upper");
}

/* Mounts the layers' overlay at ../root, with what the view has changed; without a view, with what is in ../upper. */
static int overlay_of(int count, const struct places *view) {
  static char text[4096];
  char upper[32];
  name_of(view ? view->upper : 0, upper, sizeof upper);
  int at = snprintf(text, sizeof text, "userxattr,upperdir=%s/files,workdir=%s/work,lowerdir=", upper, upper);
  for (int i = view ? view->frozen_count - 1 : -1; i >= 0 && at < (int)sizeof text - 32; i--) {
    at += name_of(view->frozen[i], text + at, sizeof text - at);
    at += snprintf(text + at, sizeof text - at, "/files:");
  }
  for (int i = count - 1; i >= 0 && at < (int)sizeof text; i--) at += snprintf(text + at, sizeof text - at, "%d%s", i, i ? ":" : "");
  if (at >= (int)sizeof text) return errno = E2BIG, -1;
  return mount("overlay", "../root", "overlay", MS_NOSUID | MS_NODEV, text);
}

int image_overlay(int count) { return overlay_of(count, NULL); }

/* Opens a path inside the image as its own processes would: no link leads out of it. With `make`, folders that are missing
 * are made, and in place of a missing last one a file where that is wanted. */
int image_open(int root, const char *path, int make, int file) {
  struct {
    uint64_t flags, mode, resolve;
  } how = {O_PATH | O_CLOEXEC, 0, 0x10 /* RESOLVE_IN_ROOT */ | 0x02 /* NO_MAGICLINKS */};
  char part[4200];
  int fd = syscall(SYS_openat2, root, path, &how, sizeof how);
  if (fd >= 0 || !make || errno != ENOENT) return fd;
  snprintf(part, sizeof part, "%s", path);
  char *name = strrchr(part, '/');
  if (!name || !name[1] || !strcmp(name + 1, "..")) return errno = EINVAL, -1;
  *name++ = 0;
  int parent = *part ? image_open(root, part, 1, 0) : dup(root);
  if (parent < 0) return -1;
  int failed = file ? mknodat(parent, name, S_IFREG | 0644, 0) : mkdirat(parent, name, 0755); /* EEXIST: a link to nowhere */
  int number = errno;
  close(parent);
  if (failed) return errno = number, -1;
  return syscall(SYS_openat2, root, path, &how, sizeof how);
}

/* In the init of a job, whose mounts are a copy of the box's. Only a root of the mount namespace may have user namespaces
 * made below it, which forks of an interpreter need; for others a chroot is enough, and takes no mounts. */
const char *image_enter(const struct spawn *spec) {
  if (!(spec->flags & SPAWN_FORKABLE)) return chdir(IMAGE_ROOT) || chroot(".") ? "enter the image" : NULL;
  if (mount(IMAGE_ROOT, IMAGE_ROOT, NULL, MS_BIND | MS_REC, NULL)) return "bind the image";
  if (chdir(IMAGE_ROOT) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/")) return "enter the image";
  return NULL;
}

#define MAX_MOUNTS 64

/* What the box has mounted in the image whose root this is, to be put on another one: into trees, ended by -1. */
static const char *take_mounts(int root, int *trees) {
  int count = 0;
  trees[0] = -1;
  for (const char *path = config.image.mounts; *path; path += strlen(path) + 1) {
    int fd = count < MAX_MOUNTS ? image_open(root, path, 0, 0) : (errno = E2BIG, -1);
    if (fd < 0) return "find a mount of the image";
    trees[count] = syscall(SYS_open_tree, fd, "", 1 /* OPEN_TREE_CLONE */ | O_CLOEXEC | AT_EMPTY_PATH | 0x8000 /* AT_RECURSIVE */);
    close(fd);
    if (trees[count] < 0) return "take a mount of the image";
    trees[++count] = -1;
  }
  return NULL;
}

static void drop_mounts(const int *trees) {
  for (int i = 0; trees[i] >= 0; i++) close(trees[i]);
}

static const char *put_mounts(int root, const int *trees) {
  const char *path = config.image.mounts;
  for (int i = 0; trees[i] >= 0; i++, path += strlen(path) + 1) {
    struct stat info;
    int fd = fstat(trees[i], &info) ? -1 : image_open(root, path, 1, !S_ISDIR(info.st_mode));
    int failed = fd < 0 || syscall(SYS_move_mount, trees[i], "", fd, "", 0x44 /* F_EMPTY_PATH, T_EMPTY_PATH */);
    int number = errno;
    if (fd >= 0) close(fd);
    errno = number;
    if (failed) return "bind a mount of the image";
  }
  return NULL;
}

static const char *upper_options(void) {
  static char options[96];
  unsigned long long bytes = config.image.root_bytes;
  snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=755", bytes, (bytes >> 13) + 16384);
  return options;
}

/* A folder of the files that a view has changed, by its path. */
static int open_upper(int upper) {
  char path[64];
  snprintf(path, sizeof path, upper ? "/.harena/uppers/%d/files" : "/.harena/upper/files", upper);
  return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

static int make_upper(const struct places *view) {
  char path[64];
  if (!view) return image_upper(upper_options());
  snprintf(path, sizeof path, "../uppers/%d/files", view->upper);
  if (mkdir(path, 0755)) return -1;
  snprintf(path, sizeof path, "../uppers/%d/work", view->upper);
  return mkdir(path, 0700);
}

/* Another overlay in place of this one, in a copy of the box's mounts: of a view, with a copy of what `from` has, which is
 * taken; or, without a view, of the layers with nothing written. */
static const char *new_root(const struct places *view, int from) {
  int trees[MAX_MOUNTS + 1], root = open(IMAGE_ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC), to = -1;
  const char *step = root < 0 ? "open the image" : take_mounts(root, trees);
  if (root >= 0) close(root);
  if (!step && (chdir(LAYERS_FOLDER) || make_upper(view))) step = "make a place for changed files";
  if (!step && from >= 0) {
    if ((to = open_upper(view->upper)) < 0) step = "open a place for changed files";
    else if (copy_whole(from, to)) from = -1, step = "copy the changed files";
    else from = -1;
  }
  if (from >= 0) close(from);
  if (!step && overlay_of(config.image.layers, view)) step = "mount the image";
  if (!step && (root = open(IMAGE_ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) step = "open the new image";
  else if (!step) {
    step = put_mounts(root, trees);
    close(root);
  }
  drop_mounts(trees);
  return step;
}

const char *image_fresh(void) { return new_root(NULL, -1); }

/* ---- the files of forks ---- */

/* Init has no right to mount. A process that has no other right and knows no other word does it: see mounter_main. */
int image_mounter = -1;
static char upper_taken[MAX_UPPERS];
static int instead[MAX_VIEWS]; /* the view that has taken over from this one; 0: none */

static int ask_mounter(int32_t number) {
  int32_t answer = 0;
  if (send(image_mounter, &number, sizeof number, MSG_NOSIGNAL) != sizeof number) return -1;
  if (recv(image_mounter, &answer, sizeof answer, 0) != sizeof answer) return errno = EPIPE, -1;
  return answer ? (errno = answer, -1) : 0;
}

/* The one process of a box from an image that may mount, forked off before init gives its capabilities up. It shares
 * nothing with jobs, and does one thing: mounts, or detaches, the place for changes with that number. */
_Noreturn void mounter_main(int line, const char *options) {
  int32_t number, answer;
  char path[64];
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || drop_capabilities(1ull << 21 /* CAP_SYS_ADMIN */)) _exit(111);
  if (dup2(line, 0) < 0 || syscall(SYS_close_range, 1, ~0u, 0)) _exit(111);
  while (recv(0, &number, sizeof number, 0) == sizeof number) {
    int upper = number < 0 ? -number : number;
    snprintf(path, sizeof path, "/.harena/uppers/%d", upper);
    errno = EINVAL;
    if (upper <= 0 || upper >= MAX_UPPERS) answer = errno;
    else if (number < 0) answer = umount2(path, MNT_DETACH) ? errno : 0;
    else answer = (mkdir(path, 0755) && errno != EEXIST) || mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options) ? errno : 0;
    if (send(0, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer) break;
  }
  _exit(0);
}

static int is_used(int upper) {
  for (int i = 0; i < MAX_VIEWS; i++) {
    if (i && !places[i].known) continue;
    if (places[i].upper == upper) return 1;
    for (int j = 0; j < places[i].frozen_count; j++)
      if (places[i].frozen[j] == upper) return 1;
  }
  return 0;
}

static void shut(int *place) {
  if (*place) close(*place - 1);
  *place = 0;
}

void image_forget(int view) {
  if (view <= 0 || view >= MAX_VIEWS || !places[view].known) return;
  shut(&places[view].workspace);
  shut(&places[view].temporary);
  places[view] = (struct places){0};
  instead[view] = 0;
  for (int upper = 1; upper < MAX_UPPERS; upper++)
    if (upper_taken[upper] && !is_used(upper)) upper_taken[upper] = ask_mounter(-upper) != 0; /* else it stays taken */
}

int image_view_of(int view) {
  for (int steps = 0; view >= 0 && view < MAX_VIEWS && instead[view] && steps < MAX_VIEWS; steps++) view = instead[view];
  return view;
}

/* Where that cannot be seen, something is taken to be there. */
static int is_empty(int upper) {
  char entries[256];
  int fd = open_upper(upper);
  long got = fd < 0 ? 1 << 20 : syscall(SYS_getdents64, fd, entries, sizeof entries);
  if (fd >= 0) close(fd);
  return got <= 64; /* . and .. */
}

/* A place for what a new view will change, on the layers of another one. With `over`, what that one has changed is a layer
 * from now on, and nothing may run there any more. */
const char *image_prepare(int view, int source, int over) {
  int upper = 1;
  while (upper < MAX_UPPERS && upper_taken[upper]) upper++;
  if (view <= 0 || view >= MAX_VIEWS || upper == MAX_UPPERS) return errno = ENOSPC, "keep the files of one more fork";
  if (over && places[source].frozen_count == MAX_FROZEN) return errno = EBUSY, "freeze its files once more";
  if (over && is_empty(places[source].upper)) return errno = EALREADY, "freeze files that it has not changed";
  image_forget(view);
  if (ask_mounter(upper)) return "mount a place for changed files";
  upper_taken[upper] = 1;
  struct places next = places[source];
  next.known = 1;
  next.upper = upper;
  next.workspace = next.temporary = 0;
  if (over) next.frozen[next.frozen_count++] = places[source].upper;
  places[view] = next;
  return NULL;
}

void image_take_over(int view, int source) { instead[source] = view; }

/* Called where the view's folders are at these paths, with the descriptors of init. */
const char *image_remember(int view) {
  places[view].workspace = open("/workspace", O_RDONLY | O_DIRECTORY | O_CLOEXEC) + 1;
  places[view].temporary = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC) + 1;
  return !places[view].workspace || !places[view].temporary ? "open the fork's files" : NULL;
}

static int reopen(int place, const char *path) {
  if (!place) return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return openat(place - 1, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Two mounts of the box's own view, for the view that takes over from it. */
static int move_mount_of(const char *path, int *tree) {
  if (*tree < 0) return (*tree = syscall(SYS_open_tree, AT_FDCWD, path, 1 /* OPEN_TREE_CLONE */ | O_CLOEXEC)) < 0 ? -1 : 0;
  int failed = syscall(SYS_move_mount, *tree, "", AT_FDCWD, path, 4 /* F_EMPTY_PATH */);
  int number = errno;
  close(*tree);
  *tree = -1;
  errno = number;
  return failed;
}

/* In a job's own namespaces: makes them those of a view that was prepared, with the files of another one. No interpreter
 * has to be forked for it, so it works for every image. */
const char *image_view(int view, int source, uint64_t bytes, int over) {
  int workspace = reopen(places[source].workspace, IMAGE_ROOT "/workspace"), trees[2] = {-1, -1};
  int temporary = reopen(places[source].temporary, IMAGE_ROOT "/tmp"), from = over ? -1 : open_upper(places[source].upper);
  int move = over && !source; /* else they are mounted in another namespace, and copied */
  const char *step = (!over && from < 0) || workspace < 0 || temporary < 0 ? "open the files to copy" : NULL;
  struct spawn forkable = {.flags = SPAWN_FORKABLE};
  if (!step && move && (move_mount_of(IMAGE_ROOT "/workspace", &trees[0]) || move_mount_of(IMAGE_ROOT "/tmp", &trees[1]))) step = "take the box's files";
  if (!step) step = new_root(&places[view], from);
  else if (from >= 0) close(from);
  if (!step && move && (move_mount_of(IMAGE_ROOT "/workspace", &trees[0]) || move_mount_of(IMAGE_ROOT "/tmp", &trees[1]))) step = "keep the box's files";
  if (!step && mount("proc", IMAGE_ROOT "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL)) step = "mount /proc";
  if (!step) step = image_enter(&forkable);
  if (!step && mount_terminals()) step = "mount /dev/pts";
  if (!step && !move) {
    if (own_copy("/workspace", "755", bytes, workspace, 1)) step = "copy /workspace";
    workspace = -1;
    if (!step && own_copy("/tmp", "1777", bytes, temporary, 1)) step = "copy /tmp";
    else if (step) close(temporary);
    temporary = -1;
  }
  if (!step && !over && own_copy("/dev/shm", "1777", bytes, open("/dev/shm", O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0)) step = "mount /dev/shm";
  if (!step && loopback_up()) step = "start the loopback interface";
  if (!step) step = image_remember(view);
  int number = errno;
  for (int i = 0; i < 2; i++)
    if (trees[i] >= 0) close(trees[i]);
  if (workspace >= 0) close(workspace);
  if (temporary >= 0) close(temporary);
  errno = number;
  return step;
}

/* For a fork of an interpreter, by a helper of fork.c that has the capabilities of the job that is forked: its overlay, as
 * a descriptor. */
const char *image_copy(int view, int source, int *tree) {
  int from = unshare(CLONE_NEWNS) ? -1 : open_upper(places[source].upper);
  if (from < 0) return "copy the box's mounts";
  const char *step = new_root(&places[view], from);
  if (step) return step;
  *tree = syscall(SYS_open_tree, AT_FDCWD, IMAGE_ROOT, 1 /* OPEN_TREE_CLONE */ | O_CLOEXEC);
  return *tree < 0 ? "take the fork's image" : NULL;
}

/* In the mounts of the fork, whose root is still the image of its parent: puts what the box has mounted there on the new
 * one, which is at IMAGE_ASIDE until image_replace. */
const char *image_attach(int tree) {
  int trees[MAX_MOUNTS + 1], root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
  const char *step = root < 0 ? "open the image" : take_mounts(root, trees);
  if (root >= 0) close(root);
  if (!step && syscall(SYS_move_mount, tree, "", AT_FDCWD, IMAGE_ASIDE, 4 /* F_EMPTY_PATH */)) step = "mount the fork's image";
  if (!step && (root = open(IMAGE_ASIDE, O_PATH | O_DIRECTORY | O_CLOEXEC)) < 0) step = "open the fork's image";
  else if (!step) {
    step = put_mounts(root, trees);
    close(root);
  }
  drop_mounts(trees);
  return step;
}

/* The kernel gives the new root to every process of the namespace that has the old one. */
const char *image_replace(void) {
  return chdir(IMAGE_ASIDE) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/") ? "enter the fork's image" : NULL;
}

static int write_map(pid_t pid, const char *file, const char *text) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, file);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  ssize_t put = fd < 0 ? -1 : write(fd, text, strlen(text));
  int number = errno;
  if (fd >= 0) close(fd);
  errno = number;
  return put < 0 ? -1 : 0;
}

/* Many ids can be mapped only from outside, with capabilities in the box's namespace, which this process keeps for it. */
int image_map(pid_t pid) { return write_map(pid, "uid_map", config.image.uid_map) || write_map(pid, "gid_map", config.image.gid_map) ? -1 : 0; }

/* Whoever changes its user makes its memory unreadable to others, and ours is the same: without this we could not map
 * the ids of the next job. */
static int stay_ours(void) { return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0); }

/* With many ids, a job's init is root among them from then on. Its real user stays ours, and that of its process until
 * image_become: the kernel (cgroups of version 1) lets us move only our own. System calls, since libc would tell threads
 * that share our memory, and are not there. */
int image_root(void) {
  if (syscall(SYS_setgroups, 0, NULL) || syscall(SYS_setresgid, 0, 0, 0) || syscall(SYS_setresuid, -1, 0, 0)) return -1;
  return stay_ours() || prctl(PR_SET_PDEATHSIG, SIGKILL) ? -1 : 0; /* another user: the kernel has forgotten it */
}

/* The user that the image, or the spec, has named for guests. Capabilities end with being root. sealed: by confine_ahead. */
int image_become(int sealed) {
  if (!config.image.on || !config.image.full) return 0;
  const struct image *image = &config.image;
  if (image->uid && !sealed && drop_bounds(0)) return -1;
  if (syscall(SYS_setgroups, image->group_count, image->groups) || syscall(SYS_setresgid, image->gid, image->gid, image->gid)) return -1;
  return syscall(SYS_setresuid, image->uid, image->uid, image->uid) || stay_ours() ? -1 : 0;
}

static char **split(const char *text, const char *end, uint32_t count) {
  char **words = calloc(count + 1, sizeof *words), *room = malloc(end - text + 1);
  if (!words || !room) return NULL;
  memcpy(room, text, end - text);
  for (uint32_t i = 0; i < count; i++, room += strlen(room) + 1) words[i] = room;
  return words;
}

/* Of a configuration: struct image_settings, then NUL-ended words: the maps of the users and groups of a job, the numbers
 * of the guest's further groups, the folder that Python starts in, the command that starts it, its environment, and places
 * in the image where the box has mounted something, ended by an empty one. What came before is kept by jobs that run. */
int image_config(const char *body, size_t len) {
  struct image_settings settings;
  struct image *image = &config.image;
  const char *words[4], *at = body + sizeof settings, *end = body + len, *python, *env;
  if (len <= sizeof settings || end[-1]) return -1;
  memcpy(&settings, body, sizeof settings);
  for (int i = 0; i < 4; i++, at += strlen(at) + 1)
    if ((words[i] = at) >= end) return -1;
  python = at;
  for (uint32_t i = 0; i < settings.argc; i++, at += strlen(at) + 1)
    if (at >= end) return -1;
  env = at;
  for (uint32_t i = 0; i < settings.envc; i++, at += strlen(at) + 1)
    if (at >= end) return -1;
  if (strlen(words[0]) >= sizeof image->uid_map || strlen(words[1]) >= sizeof image->gid_map ||
      strlen(words[3]) >= sizeof image->cwd || end - at > (long)sizeof image->mounts || at >= end)
    return -1;
  *image = (struct image){.on = 1, .full = settings.full, .uid = settings.uid, .gid = settings.gid, .keep = settings.keep, .layers = settings.layers, .root_bytes = settings.root_bytes};
  strcpy(image->uid_map, words[0]);
  strcpy(image->gid_map, words[1]);
  for (char *text = (char *)words[2]; *text && image->group_count < 64;) image->groups[image->group_count++] = strtoul(text, &text, 10);
  strcpy(image->cwd, words[3]);
  memcpy(image->mounts, at, end - at);
  if (!settings.argc) return 0;
  if (!(image->python = split(python, env, settings.argc)) || !(image->python_env = split(env, at, settings.envc))) return -1;
  return 0;
}
