/* First process of an agent's container in a match Job: harena-seat SOCKET SCRATCH PROCESSES LOG_BYTES -- COMMAND...
 *
 * For each game it connects to the orchestrator's socket, says how the last game's agent ended, waits for the word to
 * start, and runs COMMAND with the socket as its standard input and output. When the orchestrator hangs up, or the
 * command ends, every process of the container but this one is killed. It ends when the socket is gone.
 *
 * SCRATCH is the folder that the agent can write to; it is emptied after each game.
 *
 * It runs inside of the agent's container, so the orchestrator believes it no more than the agent itself: whatever an
 * agent makes it say can only harm the agent. Static and without a libc of the image: images have any content.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RETRY_MS 20

static long log_left;
static const char *scratch;

static void pause_ms(long ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

static int connect_once(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Processes of this container that the kernel has killed for their memory. */
static long oom_kills(void)
{
    static const char *const files[] = {"/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"};
    for (size_t at = 0; at < 2; at++) {
        FILE *file = fopen(files[at], "re");
        char name[64];
        long value;
        while (file && fscanf(file, "%63s %ld", name, &value) == 2)
            if (strcmp(name, "oom_kill") == 0) {
                fclose(file);
                return value;
            }
        if (file)
            fclose(file);
    }
    return 0;
}

static void remove_below(int folder, int depth)
{
    DIR *dir = depth < 64 ? fdopendir(folder) : NULL;
    struct dirent *entry;
    if (!dir) {
        close(folder);
        return;
    }
    while ((entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0)
            continue;
        fchmodat(dirfd(dir), entry->d_name, 0700, 0);
        int below = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (below >= 0)
            remove_below(below, depth + 1);
        unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
    }
    closedir(dir);
}

/* The next game begins with nothing that this one wrote. */
static void clean(void)
{
    int folder = open(scratch, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder >= 0)
        remove_below(folder, 0);
}

static void say_load(int fd, int error)
{
    char text[256];
    int size = snprintf(text, sizeof text, "{\"fault\": \"load\", \"text\": \"its command cannot be run: %s\"}\n",
                        strerror(error));
    if (write(fd, text, size) < 0)
        _exit(126);
}

static void run(int fd, int log, long processes, char **command)
{
    struct rlimit limit = {processes, processes}, none = {0, 0};
    setrlimit(RLIMIT_NPROC, &limit);
    setrlimit(RLIMIT_CORE, &none);
    setsid();
    if (dup2(fd, 0) < 0 || dup2(fd, 1) < 0 || dup2(log, 2) < 0)
        _exit(126);
    sigset_t empty;
    sigemptyset(&empty);
    sigprocmask(SIG_SETMASK, &empty, NULL);
    execvp(command[0], command);
    say_load(1, errno);
    _exit(127);
}

/* Passes on what the agent printed, up to the limit for all games; the rest is read and dropped. */
static int pass_on(int log)
{
    char data[4096];
    ssize_t size = read(log, data, sizeof data);
    if (size <= 0)
        return size < 0 && errno == EINTR;
    ssize_t kept = size < log_left ? size : log_left;
    if (kept > 0 && write(2, data, kept) < 0)
        kept = log_left;
    log_left -= kept;
    return 1;
}

static void on_child(int signal)
{
    (void)signal;
}

/* One game. Returns how the command ended, as waitpid says it; -1 where the orchestrator hung up first. */
static int play(int fd, long processes, char **command, const sigset_t *waiting)
{
    int pipes[2], status = -1, open = 1;
    if (pipe2(pipes, O_CLOEXEC) < 0)
        return -1;
    pid_t child = fork();
    if (child == 0)
        run(fd, pipes[1], processes, command);
    close(pipes[1]);
    for (int over = child < 0; !over;) {
        struct pollfd watched[] = {{fd, POLLRDHUP, 0}, {open ? pipes[0] : -1, POLLIN, 0}};
        struct timespec long_time = {1, 0};
        int found = ppoll(watched, 2, &long_time, waiting), one;
        for (pid_t ended; (ended = waitpid(-1, &one, WNOHANG)) > 0;)
            if (ended == child)
                status = one, over = 1;
        if (found <= 0)
            continue;
        if (watched[1].revents)
            open = pass_on(pipes[0]);
        if (watched[0].revents & (POLLRDHUP | POLLHUP | POLLERR))
            over = 1;
    }
    kill(-1, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
        ;
    fcntl(pipes[0], F_SETFL, O_NONBLOCK);
    while (open && log_left > 0 && pass_on(pipes[0]))
        ;
    close(pipes[0]);
    return status;
}

int main(int count, char **words)
{
    if (count < 7 || strcmp(words[5], "--")) {
        fprintf(stderr, "usage: harena-seat SOCKET SCRATCH PROCESSES LOG_BYTES -- COMMAND...\n");
        return 2;
    }
    if (getpid() != 1) { /* it kills every process that it can see */
        fprintf(stderr, "harena-seat: only the first process of a container may run this\n");
        return 2;
    }
    scratch = words[2];
    long processes = atol(words[3]);
    log_left = atol(words[4]);
    prctl(PR_SET_DUMPABLE, 0);
    signal(SIGPIPE, SIG_IGN);
    struct sigaction action = {.sa_handler = on_child};
    sigaction(SIGCHLD, &action, NULL);
    sigset_t blocked, waiting;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    sigprocmask(SIG_BLOCK, &blocked, &waiting);
    sigdelset(&waiting, SIGCHLD);

    char told[64] = "new\n", word;
    for (int met = 0;;) {
        int fd = connect_once(words[1]);
        if (fd < 0 && met)
            return 0; /* the match is over */
        if (fd < 0) {
            pause_ms(RETRY_MS);
            continue;
        }
        met = 1;
        if (write(fd, told, strlen(told)) < 0 || read(fd, &word, 1) != 1)
            return 0;
        long killed = oom_kills();
        int status = play(fd, processes, words + 6, &waiting);
        if (status >= 0 && oom_kills() > killed)
            snprintf(told, sizeof told, "memory\n");
        else if (status >= 0 && WIFEXITED(status))
            snprintf(told, sizeof told, "exit %d\n", WEXITSTATUS(status));
        else if (status >= 0)
            snprintf(told, sizeof told, "signal %d\n", WTERMSIG(status));
        else
            snprintf(told, sizeof told, "new\n");
        close(fd);
        clean();
    }
}
