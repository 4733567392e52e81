/* The interfaces and sockets of a box. It has only a loopback interface. In a box with a network every address is routed
 * to it: whatever a guest dials arrives at a socket of the box's own namespace, which the host listens on, or at none. */
#include "harena.h"
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/wait.h>

int loopback_up(void) {
  struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  int failed = ioctl(fd, SIOCSIFFLAGS, &request), number = errno;
  close(fd);
  errno = number;
  return failed;
}

/* ip route add local default dev lo */
static int route_family(int netlink, int family) {
  struct {
    struct nlmsghdr head;
    struct rtmsg route;
    struct rtattr attribute;
    uint32_t interface;
  } request = {
      .head = {.nlmsg_len = sizeof request, .nlmsg_type = RTM_NEWROUTE, .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE},
      .route = {.rtm_family = family, .rtm_table = RT_TABLE_LOCAL, .rtm_protocol = RTPROT_STATIC,
                .rtm_scope = family == AF_INET ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE, .rtm_type = RTN_LOCAL},
      .attribute = {.rta_len = RTA_LENGTH(sizeof(uint32_t)), .rta_type = RTA_OIF},
      .interface = if_nametoindex("lo"),
  };
  struct {
    struct nlmsghdr head;
    struct nlmsgerr error;
    char rest[512];
  } answer;
  if (!request.interface || send(netlink, &request, sizeof request, 0) != sizeof request) return -1;
  ssize_t got = recv(netlink, &answer, sizeof answer, 0);
  if (got < (ssize_t)(sizeof answer.head + sizeof answer.error.error) || answer.head.nlmsg_type != NLMSG_ERROR) return errno = EPROTO, -1;
  errno = -answer.error.error;
  return errno && errno != EEXIST ? -1 : 0;
}

/* Where IPv6 is turned off there is nothing to route, and its addresses are unreachable. */
int route_everything(void) {
  int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (netlink < 0) return -1;
  int failed = route_family(netlink, AF_INET), number = errno;
  if (!failed) route_family(netlink, AF_INET6);
  close(netlink);
  errno = number;
  return failed;
}

struct maker {
  const struct socket_request *request;
  int pidfd, fd, number;
};

/* In the namespaces of a forked view, where it has all capabilities. It shares our memory and descriptors. */
static int maker_main(void *arg) {
  struct maker *maker = arg;
  if (syscall(SYS_setns, maker->pidfd, CLONE_NEWUSER | CLONE_NEWNET) || (maker->request->routed && route_everything()) ||
      (maker->fd = socket(maker->request->family, maker->request->type | SOCK_CLOEXEC, 0)) < 0)
    maker->number = errno;
  return 0;
}

/* A socket of the box's own network, for the host. A forked view has another network than ours. */
int make_socket(const struct socket_request *request) {
  static char stack[16 << 10] __attribute__((aligned(16)));
  if ((request->family != AF_INET && request->family != AF_INET6) || (request->type != SOCK_STREAM && request->type != SOCK_DGRAM))
    return errno = EINVAL, -1;
  if (!request->view) return socket(request->family, request->type | SOCK_CLOEXEC, 0);
  struct maker maker = {.request = request, .pidfd = view_pidfd(request->view), .fd = -1};
  if (maker.pidfd < 0) return -1;
  pid_t pid = clone(maker_main, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_VFORK | SIGCHLD, &maker);
  if (pid < 0) return -1;
  int status;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
  if (maker.fd < 0) errno = maker.number ? maker.number : EINTR;
  return maker.fd;
}
