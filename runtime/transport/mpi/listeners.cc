#include "runtime/transport/mpi/listeners.h"

#include <dirent.h>
#include <net/if.h>
#include <sys/socket.h>

#include <cstdlib>

#include "runtime/base/networks.h"

namespace tf_hvd {
namespace {

bool IsWideListener(int file) {
  int listens = 0;
  socklen_t length = sizeof(listens);
  if (getsockopt(file, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 ||
      listens == 0) {
    return false;
  }
  sockaddr_storage own = {};
  length = sizeof(own);
  if (getsockname(file, reinterpret_cast<sockaddr*>(&own), &length) != 0) {
    return false;
  }
  if (own.ss_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(own).sin_addr.s_addr ==
           htonl(INADDR_ANY);
  }
  return own.ss_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(
             &reinterpret_cast<const sockaddr_in6&>(own).sin6_addr);
}

// Of the interfaces with an address in the networks; loopback is in no job's.
std::set<std::string> InterfacesIn(const std::string& networks) {
  std::set<std::string> names;
  VisitOwn(networks.c_str(), [&](const ifaddrs& own) {
    if ((own.ifa_flags & IFF_LOOPBACK) == 0) names.insert(own.ifa_name);
    return false;
  });
  return names;
}

}  // namespace

std::set<int> WideListeners() {
  std::set<int> found;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return found;
  while (const dirent* entry = readdir(folder)) {
    const int file = std::atoi(entry->d_name);
    if (IsWideListener(file)) found.insert(file);
  }
  closedir(folder);
  return found;
}

void Narrow(const std::set<int>& listeners, const std::set<int>& others,
            const std::string& networks) {
  const std::set<std::string> interfaces = InterfacesIn(networks);
  if (interfaces.size() != 1) return;
  const std::string& name = *interfaces.begin();
  for (const int file : listeners) {
    if (others.count(file) > 0) continue;
    // Kernels before 5.7 let root alone do this: there it stays as it is.
    static_cast<void>(setsockopt(file, SOL_SOCKET, SO_BINDTODEVICE,
                                 name.c_str(),
                                 static_cast<socklen_t>(name.size())));
  }
}

}  // namespace tf_hvd
