#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "runtime/base/networks.h"
#include "runtime/transport/mpi/listeners.h"

namespace tf_hvd {
namespace {

// A socket that listens; on every interface if the address is 0.0.0.0.
class Listener {
 public:
  explicit Listener(const char* address)
      : file_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    inet_pton(AF_INET, address, &own.sin_addr);
    EXPECT_EQ(bind(file_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)),
              0);
    EXPECT_EQ(listen(file_, 1), 0);
  }
  ~Listener() { close(file_); }

  int file() const { return file_; }

  std::string interface() const {
    char name[64] = "";
    socklen_t length = sizeof(name);
    EXPECT_EQ(getsockopt(file_, SOL_SOCKET, SO_BINDTODEVICE, name, &length), 0);
    return name;
  }

 private:
  const int file_;
};

// The network of the first address of this machine that is not loopback, and
// its interface; empty if there is none.
std::string OutsideNetwork(std::string* interface) {
  std::string network;
  VisitOwn("0.0.0.0/0", [&](const ifaddrs& own) {
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET, BytesOf(own.ifa_addr), text, sizeof(text));
    if (std::strncmp(text, "127.", 4) == 0) return false;
    network = std::string(text) + "/32";
    *interface = own.ifa_name;
    return true;
  });
  return network;
}

TEST(MpiListenersTest, OnlyTheWideOnesAreFound) {
  const Listener wide("0.0.0.0");
  const Listener narrow("127.0.0.1");
  const std::set<int> found = WideListeners();
  EXPECT_EQ(found.count(wide.file()), 1u);
  EXPECT_EQ(found.count(narrow.file()), 0u);
}

TEST(MpiListenersTest, NewOnesListenByTheJobsInterfaceAlone) {
  std::string interface;
  const std::string network = OutsideNetwork(&interface);
  if (network.empty()) GTEST_SKIP() << "this machine has loopback alone";
  const Listener of_the_program("0.0.0.0");
  const std::set<int> others = WideListeners();
  const Listener of_mpi("0.0.0.0");
  Narrow(WideListeners(), others, network + ",::1/128");
  EXPECT_EQ(of_mpi.interface(), interface);
  EXPECT_EQ(of_the_program.interface(), "");
}

TEST(MpiListenersTest, NothingIsNarrowedToNoInterface) {
  const Listener of_mpi("0.0.0.0");
  Narrow({of_mpi.file()}, {}, "192.0.2.255/32,127.0.0.0/8,nonsense");
  EXPECT_EQ(of_mpi.interface(), "");
}

TEST(NetworksTest, AreParsed) {
  Network network;
  const auto parse = [&](const char* text) {
    return ParseNetwork(text, std::strlen(text), &network);
  };
  EXPECT_TRUE(parse("10.0.0.0/24"));
  EXPECT_EQ(network.family, AF_INET);
  EXPECT_EQ(network.length, 24);
  EXPECT_TRUE(parse("::1/128"));
  EXPECT_EQ(network.family, AF_INET6);
  for (const char* text : {"", "10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0/8",
                           "10.0.0.0/-1", "::1/129"}) {
    EXPECT_FALSE(parse(text)) << text;
  }
}

TEST(NetworksTest, HoldTheirAddresses) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, "10.1.130.7", &address.sin_addr);
  const auto* const own = reinterpret_cast<const sockaddr*>(&address);
  const auto is_in = [&](const char* text) {
    Network network;
    EXPECT_TRUE(ParseNetwork(text, std::strlen(text), &network));
    return IsIn(own, network);
  };
  EXPECT_TRUE(is_in("10.1.128.0/17"));
  EXPECT_TRUE(is_in("0.0.0.0/0"));
  EXPECT_TRUE(is_in("10.1.130.7/32"));
  EXPECT_FALSE(is_in("10.1.0.0/17"));
  EXPECT_FALSE(is_in("10.1.130.6/32"));
  EXPECT_FALSE(is_in("::/0"));
}

}  // namespace
}  // namespace tf_hvd
