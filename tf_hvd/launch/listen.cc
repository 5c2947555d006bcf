// This library is preloaded into MPI's launchers (LD_PRELOAD, set by
// network.py) for a job on one machine. The launchers listen on every interface
// and have no option to change that; this library makes them listen only on
// loopback. rank.py removes it from the ranks' environment.
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

extern "C" __attribute__((visibility("default"))) int bind(
    int socket, const sockaddr* address, socklen_t length) noexcept {
  using Bind = int (*)(int, const sockaddr*, socklen_t);
  static const auto real = reinterpret_cast<Bind>(dlsym(RTLD_NEXT, "bind"));
  sockaddr_storage to = {};
  if (address == nullptr || length > sizeof(to)) {
    return real(socket, address, length);
  }
  std::memcpy(&to, address, length);
  auto& v4 = reinterpret_cast<sockaddr_in&>(to).sin_addr;
  auto& v6 = reinterpret_cast<sockaddr_in6&>(to).sin6_addr;
  if (to.ss_family == AF_INET && v4.s_addr == htonl(INADDR_ANY)) {
    v4.s_addr = htonl(INADDR_LOOPBACK);
  } else if (to.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6)) {
    v6 = in6addr_loopback;
    const auto* const loopback = reinterpret_cast<const sockaddr*>(&to);
    if (real(socket, loopback, length) == 0) return 0;
    // A machine without IPv6, where this socket would accept IPv4 connections
    // from any interface.
    std::memset(&v6, 0, sizeof(v6));
    v6.s6_addr[10] = v6.s6_addr[11] = 0xff;
    v6.s6_addr[12] = 127;
    v6.s6_addr[15] = 1;
  }
  return real(socket, reinterpret_cast<const sockaddr*>(&to), length);
}
