#include "runtime/transport/gpu/gpu_meeting.h"

#include <cstring>
#include <map>

namespace tf_hvd {
namespace {

// "2.21.5", of 22105.
std::string VersionText(int version) {
  return std::to_string(version / 10000) + "." +
         std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

Status CheckCards(const std::vector<GpuCard>& cards,
                  const std::vector<std::string>& names, bool shared_devices) {
  std::map<std::string, size_t> by_uuid;
  for (size_t i = 0; i < cards.size(); ++i) {
    if (cards[i].nccl_version != cards[0].nccl_version) {
      return FailedPrecondition(
          names[0] + " has NCCL " + VersionText(cards[0].nccl_version) +
          " and " + names[i] + " has NCCL " +
          VersionText(cards[i].nccl_version) +
          "; install the same on all machines, or name it with "
          "TF_HVD_NCCL_LIBRARY");
    }
    const std::string uuid(cards[i].uuid.bytes, sizeof(cards[i].uuid.bytes));
    const auto [found, is_new] = by_uuid.emplace(uuid, i);
    if (is_new || shared_devices) continue;
    return FailedPrecondition(
        names[found->second] + " and " + names[i] +
        " use the same GPU (number " + std::to_string(cards[i].ordinal) +
        "), and NCCL needs one for each. Give each rank its own, before "
        "anything else uses a GPU: gpus = tf.config.list_physical_devices"
        "('GPU'); tf.config.set_visible_devices(gpus[hvd.local_rank()], "
        "'GPU'). With fewer GPUs than ranks: TF_HVD_NCCL=0");
  }
  return Status::Ok();
}

}  // namespace tf_hvd
