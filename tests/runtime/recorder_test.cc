#include "runtime/events/recorder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/recorded_call.h"

namespace tf_hvd {
namespace {

// A reader's view.
class Seen {
 public:
  explicit Seen(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
  }

  bool there() const { return bytes_.size() == kRecordingBytes; }
  const RecordingHeader& header() const {
    return *reinterpret_cast<const RecordingHeader*>(bytes_.data());
  }
  const RecordingSlot& slot(size_t place) const {
    return reinterpret_cast<const RecordingSlot*>(bytes_.data() +
                                                  kRecordingHeaderBytes)[place];
  }

 private:
  std::vector<char> bytes_;
};

template <typename Text>
std::string TextOf(const Text& text) {
  return reinterpret_cast<const char*>(&text);
}

class RecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "/recorder.XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dumps_ = name + "/dumps";
    folder_ = dumps_ + "/a job";
  }

  std::unique_ptr<Recorder> Make() {
    std::string why;
    auto recorder =
        Recorder::Make({-1, "", dumps_}, {3, 8, 3, -1, "host3", "a job"}, &why);
    EXPECT_NE(recorder, nullptr) << why;
    return recorder;
  }
  std::string path() const { return folder_ + "/rank.3"; }
  Seen Look() const { return Seen(path()); }

  std::string dumps_;
  std::string folder_;
};

TEST_F(RecorderTest, RecordsTheRank) {
  const auto recorder = Make();
  const Seen seen = Look();
  ASSERT_TRUE(seen.there());
  EXPECT_EQ(std::memcmp(&seen.header().magic, "tfhvdrec", 8), 0);
  EXPECT_EQ(seen.header().rank, 3);
  EXPECT_EQ(seen.header().size, 8);
  EXPECT_EQ(seen.header().process, getpid());
  EXPECT_EQ(seen.header().state, static_cast<uint32_t>(RankState::kJoined));
  EXPECT_EQ(TextOf(seen.header().host), "host3");
  EXPECT_EQ(TextOf(seen.header().job), "a job");
  struct stat about = {};
  ASSERT_EQ(stat(path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  ASSERT_EQ(stat(folder_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
}

TEST_F(RecorderTest, RecordsTheProgressOfACall) {
  const auto recorder = Make();
  Entry call = CallOf("grad_1");
  call.source = "train.py:88";
  call.set = 2;
  call.step = 12;
  call.request.kind = OpKind::kReducescatter;
  call.request.reduce_op = ReduceOp::kMax;
  call.request.device = DeviceKind::kGpu;
  call.request.compiled = true;
  call.request.tensors = {{DType::kBfloat16, {2, 3, 4, 5, 6}},
                          {DType::kUint8, {1}}};
  CallRecord record = recorder->Add(call);
  {
    const Seen seen = Look();
    const RecordingSlot& slot = seen.slot(0);
    EXPECT_EQ(slot.number, 1u);
    EXPECT_GT(slot.submitted_ns, 0);
    EXPECT_EQ(slot.agreed_ns, 0);
    EXPECT_EQ(TextOf(slot.name), "grad_1");
    EXPECT_EQ(TextOf(slot.source), "train.py:88");
    EXPECT_EQ(slot.set, 2);
    EXPECT_EQ(slot.kind, OpKind::kReducescatter);
    EXPECT_EQ(slot.dtype, DType::kBfloat16);
    EXPECT_EQ(slot.reduce_op, ReduceOp::kMax);
    EXPECT_EQ(slot.device, DeviceKind::kGpu);
    EXPECT_EQ(slot.caller, CallerKind::kCompiled);
    EXPECT_EQ(slot.tensors, 2);
    EXPECT_EQ(slot.bytes, 1441);
    EXPECT_EQ(slot.step, 12);
    EXPECT_EQ(slot.dimensions, 5);
    EXPECT_EQ(slot.shape[3], 5);
  }
  record.Agreed(512, 5, 1000);
  record.Started(9, 2000);
  record.MovesBy("shm");
  record.Moved(0.375, 5);
  {
    const Seen seen = Look();
    const RecordingSlot& slot = seen.slot(0);
    EXPECT_EQ(slot.order, 512);
    EXPECT_EQ(slot.agreed_ns, 1000);
    EXPECT_EQ(slot.started_ns, 2000);
    EXPECT_EQ(slot.operation, 9u);
    EXPECT_EQ(TextOf(slot.backend), "shm");
    EXPECT_EQ(slot.part, 0.375);
    EXPECT_EQ(slot.awaited, 6);
    EXPECT_EQ(slot.ended_ns, 0);
  }
  record.Ended(FailedPrecondition("ranks disagree"));
  const Seen seen = Look();
  EXPECT_GT(seen.slot(0).ended_ns, 0);
  EXPECT_EQ(seen.slot(0).code, StatusCode::kFailedPrecondition);
  EXPECT_EQ(seen.header().failed_call, 1u);
  EXPECT_EQ(TextOf(seen.header().failed), "ranks disagree");
}

// Calls that fail because the job has ended do not show why it ended.
TEST_F(RecorderTest, RecordsTheLastErrorAndTheFirstEnd) {
  const auto recorder = Make();
  recorder->Add(CallOf("a")).Ended(Aborted("rank 1 died"));
  recorder->Add(CallOf("b")).Ended(InvalidArgument("first"));
  recorder->Add(CallOf("c")).Ended(InvalidArgument("second"));
  recorder->EndedFor("rank 1 died");
  recorder->EndedFor("rank 2 died");
  const Seen seen = Look();
  EXPECT_EQ(seen.header().lost_call, 1u);
  EXPECT_EQ(seen.header().failed_call, 3u);
  EXPECT_EQ(TextOf(seen.header().failed), "second");
  EXPECT_EQ(TextOf(seen.header().ended), "rank 1 died");
}

TEST_F(RecorderTest, LongTextLosesItsMiddle) {
  const auto recorder = Make();
  const std::string head(80, 'a');
  const std::string tail(80, 'z');
  recorder->Add(CallOf(head + tail));
  recorder->Add(CallOf(std::string(104, 'n')));
  recorder->Add(CallOf(std::string(103, 'f')));
  const Seen seen = Look();
  const std::string name = TextOf(seen.slot(0).name);
  EXPECT_EQ(name, head.substr(0, 50) + "..." + tail.substr(0, 50));
  EXPECT_EQ(TextOf(seen.slot(1).name).size(), 103u);
  EXPECT_EQ(TextOf(seen.slot(2).name), std::string(103, 'f'));
}

TEST_F(RecorderTest, RingWrapsAround) {
  const auto recorder = Make();
  CallRecord first =
      recorder->Add(CallOf("the first, which is never answered"));
  for (size_t i = 1; i <= kRecordedCalls; ++i) {
    recorder->Add(CallOf("later")).Ended(Status::Ok());
  }
  // Another call uses its slot by now.
  first.Agreed(1, 0, 1);
  first.Started(1, 1);
  first.MovesBy("shm");
  first.Moved(1, 1);
  const Seen seen = Look();
  EXPECT_EQ(seen.header().calls, kRecordedCalls + 1);
  EXPECT_EQ(seen.slot(0).number, kRecordedCalls + 1);
  EXPECT_EQ(TextOf(seen.slot(0).name), "later");
  EXPECT_EQ(seen.slot(0).order, 0);
  EXPECT_EQ(seen.slot(0).started_ns, 0);
  EXPECT_EQ(TextOf(seen.slot(0).backend), "");
  EXPECT_EQ(seen.slot(1).number, 2u);
}

TEST_F(RecorderTest, AnyThreadCanCall) {
  const auto recorder = Make();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&recorder] {
      for (size_t i = 0; i < kRecordedCalls / 8; ++i) {
        CallRecord record = recorder->Add(CallOf("x"));
        record.Agreed(1, 0, 1);
        record.Ended(InvalidArgument("no"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const Seen seen = Look();
  std::set<uint64_t> numbers;
  for (size_t i = 0; i < kRecordedCalls; ++i) {
    numbers.insert(seen.slot(i).number);
    EXPECT_GT(seen.slot(i).ended_ns, 0);
  }
  EXPECT_EQ(numbers.size(), kRecordedCalls);
  EXPECT_EQ(*numbers.begin(), 1u);
}

TEST_F(RecorderTest, NormalLeaveRemovesTheFile) {
  {
    const auto recorder = Make();
    recorder->Add(CallOf("x")).Ended(Status::Ok());
    recorder->EndedFor("rank 1 (host1) left: shutdown()");
    recorder->Leaves("shutdown()", true);
    EXPECT_TRUE(Look().there());
    recorder->Left(false);
    EXPECT_FALSE(Look().there());
    EXPECT_NE(access(folder_.c_str(), F_OK), 0);
  }
  {
    const auto recorder = Make();
    recorder->Leaves("ValueError: boom", false);
    recorder->Left(false);
  }
  const Seen seen = Look();
  ASSERT_TRUE(seen.there());
  EXPECT_EQ(seen.header().state, static_cast<uint32_t>(RankState::kFailed));
  EXPECT_EQ(TextOf(seen.header().reason), "ValueError: boom");
  EXPECT_GT(seen.header().left_ns, 0);
}

// This rank ran to its normal end.
TEST_F(RecorderTest, FailureOfAnotherRankKeepsTheFile) {
  {
    const auto recorder = Make();
    recorder->EndedFor("rank 1 (host1) died");
    recorder->Leaves("its program has ended", true);
    recorder->Left(true);
    EXPECT_TRUE(Look().there());
  }
  const auto recorder = Make();
  recorder->Add(CallOf("x")).Ended(Aborted("rank 1 (host1) left: shutdown()"));
  recorder->Leaves("its program has ended", true);
  recorder->Left(false);
  EXPECT_TRUE(Look().there());
  EXPECT_EQ(Look().header().lost_call, 1u);
}

TEST_F(RecorderTest, UsesAFileThatIsHandedOver) {
  const int file = memfd_create("tf_hvd_recorder", 0);
  ASSERT_GT(file, 2);
  const int kept = dup(file);
  {
    std::string why;
    const auto recorder = Recorder::Make({file, "handed", dumps_}, {}, &why);
    ASSERT_NE(recorder, nullptr) << why;
    EXPECT_NE(fcntl(file, F_GETFD) & FD_CLOEXEC, 0);
    recorder->Add(CallOf("x"));
  }
  RecordingSlot slot;
  ASSERT_EQ(pread(kept, static_cast<void*>(&slot), sizeof(slot),
                  kRecordingHeaderBytes),
            static_cast<ssize_t>(sizeof(slot)));
  EXPECT_EQ(TextOf(slot.name), "x");
  EXPECT_NE(access(path().c_str(), F_OK), 0);
  // A process that the rank starts inherits the variable.
  std::string why;
  const auto other = Recorder::Make({kept, "handed", ""}, {}, &why);
  ASSERT_NE(other, nullptr) << why;
  other->Add(CallOf("y"));
  ASSERT_EQ(pread(kept, static_cast<void*>(&slot), sizeof(slot),
                  kRecordingHeaderBytes),
            static_cast<ssize_t>(sizeof(slot)));
  EXPECT_EQ(TextOf(slot.name), "x");
  close(kept);
}

// That number may belong to any file by then.
TEST_F(RecorderTest, LeavesOtherFilesUnchanged) {
  const std::string name = testing::TempDir() + "/precious";
  const int file = open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
  ASSERT_GT(file, 2);
  std::string why;
  const auto recorder = Recorder::Make({file, "handed", ""}, {}, &why);
  ASSERT_NE(recorder, nullptr) << why;
  struct stat about = {};
  ASSERT_EQ(fstat(file, &about), 0);
  EXPECT_EQ(about.st_size, 0);
  close(file);
}

TEST_F(RecorderTest, ReportsWhyItCannotStart) {
  std::string why;
  const RecordingRank rank = {0, 1, 0, -1, "host", "job"};
  EXPECT_EQ(Recorder::Make({-1, "", "/proc/no"}, rank, &why), nullptr);
  EXPECT_NE(why.find("/proc/no/job"), std::string::npos) << why;
  EXPECT_EQ(Recorder::Make({-1, "", "/dev/full"}, rank, &why), nullptr);
}

// Another user has created it, to redirect the writes.
TEST_F(RecorderTest, DoesNotFollowLinks) {
  std::string why;
  const std::string elsewhere = dumps_ + "-elsewhere";
  ASSERT_EQ(mkdir(dumps_.c_str(), 0700), 0);
  ASSERT_EQ(mkdir(elsewhere.c_str(), 0700), 0);
  ASSERT_EQ(symlink(elsewhere.c_str(), folder_.c_str()), 0);
  EXPECT_EQ(Recorder::Make({-1, "", dumps_}, {3, 8, 3, -1, "h", "a job"}, &why),
            nullptr);
  ASSERT_EQ(unlink(folder_.c_str()), 0);
  ASSERT_EQ(mkdir(folder_.c_str(), 0777), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  EXPECT_EQ(Recorder::Make({-1, "", dumps_}, {3, 8, 3, -1, "h", "a job"}, &why),
            nullptr);
  EXPECT_NE(why.find("is not owned by this user"), std::string::npos) << why;
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
  ASSERT_EQ(symlink((elsewhere + "/file").c_str(), path().c_str()), 0);
  const auto recorder = Make();
  EXPECT_TRUE(Look().there());
  EXPECT_NE(access((elsewhere + "/file").c_str(), F_OK), 0);
}

TEST_F(RecorderTest, ProcessCanJoinAJobAgain) {
  const int file = memfd_create("tf_hvd_recorder", 0);
  std::string why;
  {
    const auto recorder = Recorder::Make({file, "handed", ""}, {}, &why);
    ASSERT_NE(recorder, nullptr) << why;
    recorder->Add(CallOf("x"));
    recorder->Leaves("shutdown()", true);
    recorder->Left(false);
  }
  const auto recorder = Recorder::Make({file, "handed", ""}, {}, &why);
  ASSERT_NE(recorder, nullptr) << why;
  recorder->Add(CallOf("y"));
  const Seen seen("/proc/self/fd/" + std::to_string(file));
  ASSERT_TRUE(seen.there());
  EXPECT_EQ(seen.header().calls, 1u);
  EXPECT_EQ(seen.header().left_ns, 0);
  EXPECT_EQ(TextOf(seen.slot(0).name), "y");
  EXPECT_EQ(TextOf(seen.header().job), "handed");
  close(file);
}

// Its later calls must not overwrite those that led to the failure.
TEST_F(RecorderTest, ProgramThatContinuesAfterTheEnd) {
  const auto recorder = Make();
  recorder->Add(CallOf("waits"));
  recorder->EndedFor("rank 1 (host1) died");
  for (int i = 0; i < 10'000; ++i) {
    recorder->Add(CallOf("again")).Ended(Aborted("rank 1 (host1) died"));
  }
  const Seen seen = Look();
  EXPECT_EQ(seen.header().calls, 2u);
  EXPECT_EQ(TextOf(seen.slot(0).name), "waits");
  EXPECT_EQ(TextOf(seen.slot(1).name), "again");
}

// Slots are reused while their calls are still updated.
TEST_F(RecorderTest, RingTooSmallForTheCallsInFlight) {
  const auto recorder = Make();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&recorder] {
      std::vector<CallRecord> held(kRecordedCalls);
      for (size_t i = 0; i < 3 * kRecordedCalls; ++i) {
        CallRecord& one = held[i % held.size()];
        one.Agreed(1, 0, 1);
        one.Ended(Status::Ok());
        one = recorder->Add(CallOf("x"));
        one.Started(1, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Look().header().calls, 12 * kRecordedCalls);
}

TEST(CallRecord, OfNoCallDoesNothing) {
  CallRecord record;
  record.Agreed(1, 0, 1);
  record.Started(1, 1);
  record.MovesBy("shm");
  record.Moved(1, 1);
  record.Ended(Internal("x"));
}

}  // namespace
}  // namespace tf_hvd
