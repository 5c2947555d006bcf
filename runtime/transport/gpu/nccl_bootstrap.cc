#include "runtime/transport/gpu/nccl_bootstrap.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

namespace tf_hvd {
namespace {

// "2.21.5", for 22105.
std::string VersionText(int version) {
  return std::to_string(version / 10000) + "." +
         std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::set<std::string> LinesOf(const PeerInfo& peer) {
  std::istringstream text(peer.settings);
  std::set<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.insert(line);
  return lines;
}

// A rank's value for a line "NAME=value" of another rank.
std::string Counterpart(const std::set<std::string>& lines,
                        const std::string& line) {
  const std::string name = line.substr(0, line.find('=') + 1);
  const auto found = lines.lower_bound(name);
  const bool is_set =
      found != lines.end() && found->compare(0, name.size(), name) == 0;
  return is_set ? *found : "no " + name.substr(0, name.size() - 1);
}

// "A has NCCL_ALGO=Ring and B has no NCCL_ALGO"; empty if there is no
// difference.
std::string DifferenceText(const PeerInfo& a, const std::string& a_name,
                           const PeerInfo& b, const std::string& b_name) {
  const std::set<std::string> of_a = LinesOf(a);
  const std::set<std::string> of_b = LinesOf(b);
  const auto text = [&](const std::string& in_a, const std::string& in_b) {
    return a_name + " has " + in_a + " and " + b_name + " has " + in_b;
  };
  for (const std::string& line : of_a) {
    if (of_b.count(line) == 0) return text(line, Counterpart(of_b, line));
  }
  for (const std::string& line : of_b) {
    if (of_a.count(line) == 0) return text(Counterpart(of_a, line), line);
  }
  return "";
}

}  // namespace

void SetSettings(const std::string& settings, PeerInfo* peer) {
  const size_t length =
      std::min(settings.size(), std::size(peer->settings) - 1);
  settings.copy(peer->settings, length);
  peer->settings[length] = '\0';
}

Status CheckPeers(const std::vector<PeerInfo>& peers,
                  const std::vector<std::string>& names, bool shared_devices) {
  std::map<std::string, size_t> by_uuid;
  for (size_t i = 0; i < peers.size(); ++i) {
    if (peers[i].nccl_version != peers[0].nccl_version) {
      return FailedPrecondition(names[0] + " has NCCL " +
                                VersionText(peers[0].nccl_version) + " and " +
                                names[i] + " has NCCL " +
                                VersionText(peers[i].nccl_version) +
                                "; install the same version on all machines, "
                                "or set TF_HVD_NCCL_LIBRARY to its path");
    }
    const std::string settings =
        DifferenceText(peers[0], names[0], peers[i], names[i]);
    if (!settings.empty()) {
      return FailedPrecondition(
          settings +
          "; NCCL hangs unless this is the same on all ranks: set it on all "
          "machines (tf_hvd run -x), or on none");
    }
    const std::string uuid(peers[i].uuid.bytes, sizeof(peers[i].uuid.bytes));
    const auto [found, is_new] = by_uuid.emplace(uuid, i);
    if (is_new || shared_devices) continue;
    return FailedPrecondition(
        names[found->second] + " and " + names[i] +
        " use the same GPU (number " + std::to_string(peers[i].ordinal) +
        "), but NCCL needs a separate one for each rank. Select it before "
        "anything else uses a GPU: gpus = tf.config.list_physical_devices"
        "('GPU'); tf.config.set_visible_devices(gpus[hvd.local_rank() % "
        "len(gpus)], 'GPU'). With fewer GPUs than ranks, set TF_HVD_NCCL=0");
  }
  return Status::Ok();
}

}  // namespace tf_hvd
