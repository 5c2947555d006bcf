#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/transport/gpu/meeting.h"

namespace tf_hvd {
namespace {

GpuCard Card(int version, int ordinal, const char* uuid) {
  GpuCard card;
  card.nccl_version = version;
  card.ordinal = ordinal;
  std::strncpy(card.uuid.bytes, uuid, sizeof(card.uuid.bytes));
  return card;
}

const std::vector<std::string> kNames = {"rank 0 (a)", "rank 2 (a)",
                                         "rank 3 (b)"};

TEST(GpuMeeting, OneGpuForEachRankIsWell) {
  EXPECT_TRUE(CheckCards({Card(22105, 0, "x"), Card(22105, 1, "y"),
                          Card(22105, 0, "z")},
                         kNames, false)
                  .ok());
  EXPECT_TRUE(CheckCards({Card(21400, 0, "x")}, {"rank 0 (a)"}, false).ok());
}

TEST(GpuMeeting, VersionsThatDiffer) {
  const Status status = CheckCards(
      {Card(22105, 0, "x"), Card(22105, 1, "y"), Card(21403, 0, "z")}, kNames,
      true);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "rank 0 (a) has NCCL 2.21.5 and rank 3 (b) has NCCL 2.14.3; "
            "install the same on all machines, or name it with "
            "TF_HVD_NCCL_LIBRARY");
}

TEST(GpuMeeting, TheSameGpuTwice) {
  const std::vector<GpuCard> cards = {Card(22105, 0, "x"), Card(22105, 1, "y"),
                                      Card(22105, 1, "y")};
  const Status status = CheckCards(cards, kNames, false);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            "rank 2 (a) and rank 3 (b) use the same GPU (number 1), and NCCL "
            "needs one for each. Give each rank its own, before anything else "
            "uses a GPU: gpus = tf.config.list_physical_devices('GPU'); "
            "tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "
            "'GPU'). With fewer GPUs than ranks: TF_HVD_NCCL=0");
  EXPECT_TRUE(CheckCards(cards, kNames, true).ok());
}

std::string Refusal(const std::string& a, const std::string& b) {
  GpuCard first = Card(22105, 0, "x");
  GpuCard second = Card(22105, 1, "y");
  SetSettings(a, &first);
  SetSettings(b, &second);
  return CheckCards({first, second}, {"rank 0 (a)", "rank 1 (b)"}, false)
      .message();
}

TEST(GpuMeeting, SettingsOfNcclThatDiffer) {
  const std::string cure =
      "; NCCL hangs unless it is equal on all ranks: set it for all machines "
      "(tf_hvd run -x), or for none";
  EXPECT_EQ(
      Refusal("NCCL_ALGO=Ring\nNCCL_PROTO=LL\n",
              "NCCL_ALGO=Tree\nNCCL_PROTO=LL\n"),
      "rank 0 (a) has NCCL_ALGO=Ring and rank 1 (b) has NCCL_ALGO=Tree" + cure);
  EXPECT_EQ(
      Refusal("NCCL_PROTO=LL\n", ""),
      "rank 0 (a) has NCCL_PROTO=LL and rank 1 (b) has no NCCL_PROTO" + cure);
  EXPECT_EQ(Refusal("NCCL_ALGO=\n", "NCCL_ALGO=\nNCCL_BUFFSIZE=1048576\n"),
            "rank 0 (a) has no NCCL_BUFFSIZE and rank 1 (b) has "
            "NCCL_BUFFSIZE=1048576" +
                cure);
  EXPECT_EQ(Refusal("NCCL_ALGO=a=b\n", "NCCL_ALGO=a=b\n"), "");
}

TEST(GpuMeeting, SettingsThatAreTooLongAreCut) {
  const std::string lines = "NCCL_ALGO=" + std::string(2000, 'a');
  EXPECT_EQ(Refusal(lines + "b\n", lines + "c\n"), "");
  GpuCard card;
  SetSettings(lines, &card);
  EXPECT_EQ(std::strlen(card.settings), sizeof(card.settings) - 1);
}

// A UUID is 16 bytes, zeros among them.
TEST(GpuMeeting, GpusDifferInAnyByte) {
  GpuCard one = Card(22105, 0, "x");
  GpuCard other = one;
  other.uuid.bytes[15] = 1;
  EXPECT_TRUE(
      CheckCards({one, other}, {"rank 0 (a)", "rank 1 (a)"}, false).ok());
}

}  // namespace
}  // namespace tf_hvd
