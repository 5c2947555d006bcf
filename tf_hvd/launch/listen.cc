// What MPI's launchers load before all else (LD_PRELOAD, set by network.py):
// they listen on every interface of a machine, and have no option against it.
// Here they listen in the networks that TF_HVD_LISTEN_ON names, and as before
// where the machine is in none of them. Ranks do not have this: rank.py takes
// it away.
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>

#include "runtime/base/networks.h"

namespace {

// The first own address of a family.
bool OwnAddress(sa_family_t family, void* address, size_t size) {
  const auto take = [&](const ifaddrs& own) {
    if (own.ifa_addr->sa_family != family) return false;
    std::memcpy(address, tf_hvd::BytesOf(own.ifa_addr), size);
    return true;
  };
  return tf_hvd::VisitOwn(std::getenv("TF_HVD_LISTEN_ON"), take);
}

void Choose(in_addr* any) { OwnAddress(AF_INET, any, sizeof(*any)); }

void Choose(in6_addr* any) {
  in_addr v4;
  if (OwnAddress(AF_INET6, any, sizeof(*any)) ||
      !OwnAddress(AF_INET, &v4, sizeof(v4))) {
    return;
  }
  // A machine without IPv6: such a socket would serve all of IPv4.
  std::memset(any, 0, sizeof(*any));
  any->s6_addr[10] = any->s6_addr[11] = 0xff;
  std::memcpy(&any->s6_addr[12], &v4, sizeof(v4));
}

}  // namespace

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
    Choose(&v4);
  } else if (to.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6)) {
    Choose(&v6);
  }
  return real(socket, reinterpret_cast<const sockaddr*>(&to), length);
}
