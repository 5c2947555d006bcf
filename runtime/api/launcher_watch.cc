#include "runtime/api/launcher_watch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/contract.h"
#include "base/log.h"

namespace tf_hvd {
namespace {

// All descendants of this process, except those in another session, which are
// meant to outlive it.
std::vector<pid_t> Descendants() {
  const std::map<pid_t, Process> all = AllProcesses();
  std::vector<pid_t> below;
  for (const auto& [id, process] : all) {
    auto next = all.find(process.parent);
    for (size_t i = 0; next != all.end() && i < all.size(); ++i) {
      if (next->first == getpid()) {
        if (getsid(id) == getsid(0)) below.push_back(id);
        break;
      }
      next = all.find(next->second.parent);
    }
  }
  return below;
}

void SignalAll(int signum) {
  for (const pid_t process : Descendants()) kill(process, signum);
  kill(getpid(), signum);
}

// Removes the files that MPI would remove in MPI_Finalize; processes that have
// mapped them keep them.
void RemoveSegmentsOfMpi() {
  constexpr char kFolder[] = "/dev/shm/";
  std::ifstream maps("/proc/self/maps");
  std::string line;
  while (std::getline(maps, line)) {
    const size_t begin = line.find(kFolder);
    if (begin == std::string::npos) continue;
    for (const char* prefix : kMpiSegments) {
      const size_t name = begin + sizeof(kFolder) - 1;
      if (line.compare(name, std::string(prefix).size(), prefix) == 0) {
        unlink(line.c_str() + begin);
      }
    }
  }
}

// IPv4 only. A socket can be bound only to an address of this machine.
bool IsOwnAddress(const std::string& address) {
  sockaddr_in wanted = {};
  wanted.sin_family = AF_INET;
  if (inet_pton(AF_INET, address.c_str(), &wanted.sin_addr) != 1) return false;
  const int probe = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const auto* const place = reinterpret_cast<const sockaddr*>(&wanted);
  const bool own = bind(probe, place, sizeof(wanted)) == 0;
  close(probe);
  return own;
}

// True if a process on this machine listens at the port. Does not connect,
// because srun would report an unknown peer.
bool Listens(int port) {
  constexpr char kListening[] = "0A";  // proc_net_tcp: TCP_LISTEN
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream sockets(file);
    std::string line;
    std::getline(sockets, line);  // the heading
    while (std::getline(sockets, line)) {
      std::string number;
      std::string local;
      std::string remote;
      std::string state;
      std::istringstream(line) >> number >> local >> remote >> state;
      const std::string port_text = local.substr(local.find(':') + 1);
      if (state == kListening &&
          std::strtol(port_text.c_str(), nullptr, 16) == port) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

LauncherWatch::LauncherWatch(const LaunchInfo& launch)
    : who_("rank " + std::to_string(launch.rank)) {
  const std::map<pid_t, Process> all = AllProcesses();
  const pid_t launcher = LauncherAbove(getpid(), all);
  if (launcher == 0) return;
  auto above = all.find(getpid());
  if (above != all.end()) above = all.find(above->second.parent);
  while (above != all.end() && above->first != launcher &&
         !IsKeeper(above->second.name)) {
    above = all.find(above->second.parent);
  }
  if (above == all.end()) return;  // the launcher has ended meanwhile
  launcher_ = above->second;
  const int port = launch.srun_port;
  const bool here = port > 0 && IsOwnAddress(launch.srun_address);
  if (here && Listens(port)) srun_port_ = port;
  thread_ = std::thread([this] { Watch(); });
}

LauncherWatch::~LauncherWatch() {
  if (!thread_.joinable()) return;
  over_.Set();
  thread_.join();
}

void LauncherWatch::Watch() {
  while (!over_.WaitFor(kLookNs)) {
    const std::string gone = Gone();
    if (!gone.empty()) return End(gone);
  }
}

std::string LauncherWatch::Gone() const {
  const auto found = FindProcess(launcher_.id);
  if (!found || found->ended || found->start != launcher_.start) {
    return launcher_.name + ", process " + std::to_string(launcher_.id);
  }
  const bool listens = srun_port_ == 0 || Listens(srun_port_);
  return listens ? "" : "srun, at port " + std::to_string(srun_port_);
}

void LauncherWatch::End(const std::string& gone) {
  WriteLog(LogLevel::kError, who_,
           "the launcher that started this rank (" + gone +
               ") is gone. This process ends here");
  RemoveSegmentsOfMpi();
  SignalAll(SIGTERM);
  if (over_.WaitFor(kGraceNs)) return;
  SignalAll(SIGKILL);
}

}  // namespace tf_hvd
