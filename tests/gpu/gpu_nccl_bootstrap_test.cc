#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/transport/gpu/nccl_bootstrap.h"

namespace tf_hvd {
namespace {

PeerInfo Card(int version, int ordinal, const char* uuid) {
  PeerInfo card;
  card.nccl_version = version;
  card.ordinal = ordinal;
  std::strncpy(card.uuid.bytes, uuid, sizeof(card.uuid.bytes));
  return card;
}

const std::vector<std::string> kNames = {"rank 0 (a)", "rank 2 (a)",
                                         "rank 3 (b)"};

TEST(NcclBootstrap, OneGpuPerRankIsAccepted) {
  EXPECT_TRUE(CheckPeers({Card(22105, 0, "x"), Card(22105, 1, "y"),
                          Card(22105, 0, "z")},
                         kNames, false)
                  .ok());
  EXPECT_TRUE(CheckPeers({Card(21400, 0, "x")}, {"rank 0 (a)"}, false).ok());
}

TEST(NcclBootstrap, VersionsThatDiffer) {
  const Status status = CheckPeers(
      {Card(22105, 0, "x"), Card(22105, 1, "y"), Card(21403, 0, "z")}, kNames,
      true);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "rank 0 (a) has NCCL 2.21.5 and rank 3 (b) has NCCL 2.14.3; "
            "install the same version on all machines, or set "
            "TF_HVD_NCCL_LIBRARY to its path");
}

TEST(NcclBootstrap, TheSameGpuTwice) {
  const std::vector<PeerInfo> cards = {Card(22105, 0, "x"), Card(22105, 1, "y"),
                                       Card(22105, 1, "y")};
  const Status status = CheckPeers(cards, kNames, false);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      status.message(),
      "rank 2 (a) and rank 3 (b) use the same GPU (number 1), but NCCL "
      "needs a separate one for each rank. Select it before anything else "
      "uses a GPU: gpus = tf.config.list_physical_devices('GPU'); "
      "tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "
      "'GPU'). With fewer GPUs than ranks, set TF_HVD_NCCL=0");
  EXPECT_TRUE(CheckPeers(cards, kNames, true).ok());
}

std::string LocalError(const std::string& a, const std::string& b) {
  PeerInfo first = Card(22105, 0, "x");
  PeerInfo second = Card(22105, 1, "y");
  SetSettings(a, &first);
  SetSettings(b, &second);
  return CheckPeers({first, second}, {"rank 0 (a)", "rank 1 (b)"}, false)
      .message();
}

TEST(NcclBootstrap, SettingsOfNcclThatDiffer) {
  const std::string cure =
      "; NCCL hangs unless this is the same on all ranks: set it on all "
      "machines "
      "(tf_hvd run -x), or on none";
  EXPECT_EQ(
      LocalError("NCCL_ALGO=Ring\nNCCL_PROTO=LL\n",
                 "NCCL_ALGO=Tree\nNCCL_PROTO=LL\n"),
      "rank 0 (a) has NCCL_ALGO=Ring and rank 1 (b) has NCCL_ALGO=Tree" + cure);
  EXPECT_EQ(
      LocalError("NCCL_PROTO=LL\n", ""),
      "rank 0 (a) has NCCL_PROTO=LL and rank 1 (b) has no NCCL_PROTO" + cure);
  EXPECT_EQ(LocalError("NCCL_ALGO=\n", "NCCL_ALGO=\nNCCL_BUFFSIZE=1048576\n"),
            "rank 0 (a) has no NCCL_BUFFSIZE and rank 1 (b) has "
            "NCCL_BUFFSIZE=1048576" +
                cure);
  EXPECT_EQ(LocalError("NCCL_ALGO=a=b\n", "NCCL_ALGO=a=b\n"), "");
}

TEST(NcclBootstrap, SettingsThatAreTooLongAreCut) {
  const std::string lines = "NCCL_ALGO=" + std::string(2000, 'a');
  EXPECT_EQ(LocalError(lines + "b\n", lines + "c\n"), "");
  PeerInfo card;
  SetSettings(lines, &card);
  EXPECT_EQ(std::strlen(card.settings), sizeof(card.settings) - 1);
}

// A UUID is 16 bytes and may contain zeros.
TEST(NcclBootstrap, GpusDifferInAnyByte) {
  PeerInfo one = Card(22105, 0, "x");
  PeerInfo other = one;
  other.uuid.bytes[15] = 1;
  EXPECT_TRUE(
      CheckPeers({one, other}, {"rank 0 (a)", "rank 1 (a)"}, false).ok());
}

}  // namespace
}  // namespace tf_hvd
