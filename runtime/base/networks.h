// Networks in a list as 10.0.0.0/24,::1/128, and what this machine has in them.
// Needs the C library alone: MPI's launchers load it too
// (tf_hvd/launch/listen.cc).
#ifndef TF_HVD_RUNTIME_BASE_NETWORKS_H_
#define TF_HVD_RUNTIME_BASE_NETWORKS_H_

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace tf_hvd {

struct Network {
  int family = AF_UNSPEC;
  uint8_t address[sizeof(in6_addr)] = {};
  int length = 0;  // in bits
};

// False if the text is no network.
inline bool ParseNetwork(const char* text, size_t length, Network* network) {
  char one[INET6_ADDRSTRLEN + 4] = "";
  if (length >= sizeof(one)) return false;
  std::memcpy(one, text, length);
  char* const slash = std::strchr(one, '/');
  if (slash == nullptr) return false;
  *slash = '\0';
  network->length = std::atoi(slash + 1);
  constexpr int kFamilies[] = {AF_INET, AF_INET6};
  for (const int family : kFamilies) {
    const int bits = family == AF_INET ? 32 : 128;
    if (network->length < 0 || network->length > bits) continue;
    network->family = family;
    if (inet_pton(family, one, network->address) == 1) return true;
  }
  return false;
}

// The bytes of an IPv4 or IPv6 address.
inline const uint8_t* BytesOf(const sockaddr* address) {
  return address->sa_family == AF_INET
             ? reinterpret_cast<const uint8_t*>(
                   &reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
             : reinterpret_cast<const uint8_t*>(
                   &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

inline bool IsIn(const sockaddr* address, const Network& network) {
  if (address == nullptr || address->sa_family != network.family) return false;
  const uint8_t* const bytes = BytesOf(address);
  for (int bit = 0; bit < network.length; ++bit) {
    const int mask = 0x80 >> bit % 8;
    if (((bytes[bit / 8] ^ network.address[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

// Calls visit(address) for each of this machine's in the networks of the list,
// in the list's order, until that returns true: then true.
template <typename Visit>
bool VisitOwn(const char* list, const Visit& visit) {
  ifaddrs* all = nullptr;
  if (list == nullptr || getifaddrs(&all) != 0) return false;
  bool found = false;
  while (*list != '\0' && !found) {
    const size_t length = std::strcspn(list, ",");
    Network network;
    if (ParseNetwork(list, length, &network)) {
      for (const ifaddrs* one = all; one != nullptr && !found;
           one = one->ifa_next) {
        found = IsIn(one->ifa_addr, network) && visit(*one);
      }
    }
    list += length + (list[length] == ',' ? 1 : 0);
  }
  freeifaddrs(all);
  return found;
}

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_BASE_NETWORKS_H_
