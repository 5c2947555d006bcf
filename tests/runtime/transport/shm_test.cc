// The shared segment and its parts, with threads and with processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/transport/liveness/abort_path.h"
#include "runtime/transport/segment/edge.h"
#include "runtime/transport/segment/fd_guard.h"
#include "runtime/transport/segment/segment.h"

namespace {

int interruptions = 0;

}  // namespace

// Replaces the C library's: the next calls, `interruptions` of them, are
// interrupted, as by signals.
extern "C" int posix_fallocate(int file, off_t at, off_t size) {
  if (interruptions > 0) {
    --interruptions;
    return EINTR;
  }
  return fallocate(file, 0, at, size) == 0 ? 0 : errno;
}

namespace tf_hvd {
namespace {

std::unique_ptr<ShmSegment> NewSegment(int local_size) {
  std::unique_ptr<ShmSegment> segment;
  const Status status = ShmSegment::Create({local_size}, &segment);
  EXPECT_TRUE(status.ok()) << status.message();
  return segment;
}

char ByteAt(size_t place) { return static_cast<char>(place * 7 + place / 253); }

TEST(ShmRingTest, KeepsOrderAcrossItsEnd) {
  const auto ring = std::make_unique<ShmRing>();
  constexpr size_t kTotal = 5 * ShmRing::kBytes + 11;
  size_t sent = 0;
  size_t received = 0;
  bool writer_waits = false;
  while (received < kTotal) {
    char piece[3001];
    size_t size = std::min(sizeof(piece), kTotal - sent);
    for (size_t i = 0; i < size; ++i) piece[i] = ByteAt(sent + i);
    sent += ring->Write(piece, size);
    size = ring->Read(piece, 2003, &writer_waits);
    for (size_t i = 0; i < size; ++i) {
      ASSERT_EQ(piece[i], ByteAt(received + i)) << received + i;
    }
    received += size;
  }
  EXPECT_FALSE(ring->Readable());
}

TEST(ShmRingTest, FullRingNotifiesTheReaderOnce) {
  const auto ring = std::make_unique<ShmRing>();
  const std::string data(ShmRing::kBytes + 5, 'x');
  EXPECT_EQ(ring->Write(data.data(), data.size()), ShmRing::kBytes);
  EXPECT_EQ(ring->Write(data.data(), 1), 0u);
  constexpr size_t kTwoLines = 2 * ShmRing::kLineBytes;
  std::string taken(kTwoLines, ' ');
  bool writer_waits = false;
  EXPECT_EQ(ring->Read(&taken[0], kTwoLines, &writer_waits), kTwoLines);
  EXPECT_TRUE(writer_waits);
  EXPECT_EQ(ring->Read(&taken[0], kTwoLines, &writer_waits), kTwoLines);
  EXPECT_FALSE(writer_waits);
  EXPECT_EQ(ring->Write(data.data(), 250), 2 * kTwoLines);
}

TEST(ShmEdgeTest, TwoThreadsPushBothWays) {
  const auto segment = NewSegment(2);
  constexpr size_t kTotal = 1'000'003;
  const auto run = [&segment](int mine) {
    const int other = 1 - mine;
    ShmEdge edge(segment->ring(mine, other), segment->ring(other, mine),
                 segment->doorbell(other));
    size_t sent = 0;
    size_t received = 0;
    size_t wrong = 0;
    while (sent < kTotal || received < kTotal) {
      char piece[4096];
      size_t size = std::min(sizeof(piece), kTotal - sent);
      for (size_t i = 0; i < size; ++i) piece[i] = ByteAt(sent + i);
      size_t moved = edge.Write(piece, size);
      sent += moved;
      edge.Flush();
      size = edge.Read(piece, sizeof(piece));
      for (size_t i = 0; i < size; ++i) {
        wrong += piece[i] != ByteAt(received + i);
      }
      received += size;
      moved += size;
      if (moved > 0) continue;
      // No other thread polls for this rank: only the neighbour's ring ends the
      // wait.
      segment->doorbell(mine)->SetAsleep(true);
      if (!edge.Readable()) segment->doorbell(mine)->Wait(1'000'000'000);
      segment->doorbell(mine)->SetAsleep(false);
    }
    EXPECT_EQ(wrong, 0u);
  };
  std::thread thread(run, 1);
  run(0);
  thread.join();
}

TEST(ShmSegmentTest, IsPrivateAndItsNameIsRemoved) {
  auto segment = NewSegment(3);
  const std::string path = "/dev/shm" + segment->name();
  struct stat file;
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  std::unique_ptr<ShmSegment> other;
  ASSERT_TRUE(ShmSegment::Attach(segment->name(), {3}, &other).ok());
  segment->RemoveName();
  EXPECT_NE(stat(path.c_str(), &file), 0);

  const std::string hello = "hello";
  segment->ring(0, 2)->Write(hello.data(), hello.size());
  char heard[8] = "";
  bool writer_waits = false;
  EXPECT_EQ(other->ring(0, 2)->Read(heard, sizeof(heard), &writer_waits), 5u);
  EXPECT_EQ(hello, heard);
  EXPECT_FALSE(other->ring(2, 0)->Readable());
  EXPECT_FALSE(other->ring(0, 1)->Readable());
}

TEST(ShmSegmentTest, SignalsDoNotPreventItsCreation) {
  const ShmShape shape = {2, /*has_arena=*/true};
  interruptions = 3;
  std::unique_ptr<ShmSegment> segment;
  const Status status = ShmSegment::Create(shape, &segment);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(interruptions, 0);
}

// In /dev/shm: the size of a segment, and the space reserved for it.
void SizesOf(const ShmSegment& segment, size_t* bytes, size_t* reserved) {
  struct stat file;
  ASSERT_EQ(stat(("/dev/shm" + segment.name()).c_str(), &file), 0);
  *bytes = static_cast<size_t>(file.st_size);
  *reserved = static_cast<size_t>(file.st_blocks) * 512;
}

TEST(ShmSegmentTest, EachRankReservesItsOwnSlots) {
  constexpr size_t kPage = 4096;
  const ShmShape shape = {2, /*has_arena=*/true};
  const size_t slots = ShmArena::kSlots * ShmArena::SlotBytesFor(2);
  std::unique_ptr<ShmSegment> leader;
  std::unique_ptr<ShmSegment> other;
  ASSERT_TRUE(ShmSegment::Create(shape, &leader).ok());
  ASSERT_TRUE(ShmSegment::Attach(leader->name(), shape, &other).ok());
  const size_t all = ShmSegment::BytesFor(shape);
  size_t bytes = 0;
  size_t reserved = 0;
  SizesOf(*leader, &bytes, &reserved);
  EXPECT_EQ(bytes, all);
  EXPECT_NEAR(static_cast<double>(reserved),
              static_cast<double>(all - 2 * slots), kPage);
  ASSERT_TRUE(other->ReserveSlots(1).ok());
  SizesOf(*leader, &bytes, &reserved);
  EXPECT_NEAR(static_cast<double>(reserved), static_cast<double>(all - slots),
              2 * kPage);
  ASSERT_TRUE(leader->ReserveSlots(0).ok());
  SizesOf(*leader, &bytes, &reserved);
  EXPECT_GE(reserved, all) << "or a later write raises SIGBUS";
}

TEST(ShmSegmentTest, MissingSegmentIsAnEnvironmentError) {
  std::unique_ptr<ShmSegment> segment;
  const Status status = ShmSegment::Attach("/tf_hvd_no_such", {2}, &segment);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("/dev/shm"), std::string::npos);
}

// A process that claims a rank of a segment until it is released.
class Holder {
 public:
  Holder(const std::string& name, int local_size, int local_rank) {
    int claimed[2];
    EXPECT_EQ(pipe(claimed), 0);
    EXPECT_EQ(pipe(orders_), 0);
    process_ = fork();
    if (process_ == 0) Live(name, local_size, local_rank, claimed[1]);
    char done;
    EXPECT_EQ(read(claimed[0], &done, 1), 1);
  }

  void Kill() { End(SIGKILL, 'x'); }
  void Leave() { End(0, 'l'); }

 private:
  [[noreturn]] void Live(const std::string& name, int local_size,
                         int local_rank, int claimed) {
    std::unique_ptr<ShmSegment> segment;
    if (!ShmSegment::Attach(name, {local_size}, &segment).ok()) _exit(1);
    if (!segment->ClaimAlive(local_rank).ok()) _exit(1);
    if (write(claimed, "c", 1) != 1) _exit(1);
    char order = '\0';
    if (read(orders_[0], &order, 1) == 1 && order == 'l') {
      segment->MarkLeft(local_rank);
    }
    _exit(0);
  }

  void End(int signal, char order) {
    if (signal != 0) kill(process_, signal);
    EXPECT_EQ(write(orders_[1], &order, 1), 1);
    EXPECT_EQ(waitpid(process_, nullptr, 0), process_);
  }

  pid_t process_ = 0;
  int orders_[2];
};

TEST(ShmSegmentTest, DeathIsDetectedAndLeavingIsNotDeath) {
  const auto segment = NewSegment(3);
  ASSERT_TRUE(segment->ClaimAlive(0).ok());
  Holder killed(segment->name(), 3, 1);
  Holder leaving(segment->name(), 3, 2);
  EXPECT_FALSE(segment->HasDied(1));
  EXPECT_FALSE(segment->HasDied(2));
  killed.Kill();
  leaving.Leave();
  EXPECT_TRUE(segment->HasDied(1));
  EXPECT_FALSE(segment->HasDied(2));
  EXPECT_TRUE(segment->HasLeft(2));
}

TEST(ShmSegmentTest, ChildThatOutlivesARankDoesNotHideItsDeath) {
  const auto segment = NewSegment(2);
  int started[2];
  int release[2];
  ASSERT_EQ(pipe(started), 0);
  ASSERT_EQ(pipe(release), 0);
  const pid_t rank = fork();
  if (rank == 0) {
    std::unique_ptr<ShmSegment> mine;
    if (!ShmSegment::Attach(segment->name(), {2}, &mine).ok()) _exit(1);
    if (!mine->ClaimAlive(1).ok()) _exit(1);
    if (fork() == 0) {
      char order;
      _exit(write(started[1], "s", 1) + read(release[0], &order, 1) == 2);
    }
    _exit(0);
  }
  ASSERT_EQ(waitpid(rank, nullptr, 0), rank);
  char done;
  ASSERT_EQ(read(started[0], &done, 1), 1);
  EXPECT_TRUE(segment->HasDied(1));
  ASSERT_EQ(write(release[1], "r", 1), 1);
}

bool OnCore(int core, const std::function<bool()>& call) {
  bool answer = false;
  std::thread([&] {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    EXPECT_EQ(sched_setaffinity(0, sizeof(cores), &cores), 0);
    answer = call();
  }).join();
  return answer;
}

// A waiting rank yields its core to another rank, not to another program.
TEST(ShmSegmentTest, CoreIsSharedWithTheRankLastSeenOnIt) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "one core";
  std::vector<int> cores;
  for (int core = 0; cores.size() < 2; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  const auto segment = NewSegment(3);
  const auto shares = [&](int rank, int core) {
    return OnCore(core, [&] { return segment->SharesCore(rank); });
  };
  EXPECT_FALSE(shares(0, cores[0]));  // no other rank has been seen
  EXPECT_FALSE(shares(1, cores[1]));
  EXPECT_FALSE(shares(0, cores[0]));
  EXPECT_TRUE(shares(2, cores[0]));
  EXPECT_TRUE(shares(0, cores[0]));
  EXPECT_FALSE(shares(1, cores[1]));
  EXPECT_TRUE(shares(2, cores[1]));  // it has moved
  EXPECT_FALSE(shares(0, cores[0]));
}

TEST(AbortBoardTest, SmallestRecordWins) {
  const auto segment = NewSegment(2);
  AbortBoard one(segment->abort_state(), segment->abort_slots(), 2, 0);
  AbortBoard two(segment->abort_state(), segment->abort_slots(), 2, 1);
  EXPECT_EQ(one.generation(), 0u);
  EXPECT_FALSE(one.Smallest());
  EXPECT_TRUE(one.Write({AbortRecord::kFailed, 5, "five"}));
  EXPECT_TRUE(two.Write({AbortRecord::kStalled, 1, "stalled"}));
  EXPECT_EQ(two.Smallest()->text, "five");
  EXPECT_TRUE(two.Write({AbortRecord::kFailed, 3, std::string(5000, 't')}));
  EXPECT_FALSE(two.Write({AbortRecord::kFailed, 4, "too late"}));
  EXPECT_EQ(one.Smallest()->rank, 3);
  EXPECT_EQ(one.Smallest()->text, std::string(kAbortTextBytes - 1, 't'));
  EXPECT_EQ(one.generation(), 3u);
}

// Two nodes could keep different texts for the same rank.
TEST(AbortRecordTest, RecordsOfTheSameRankAreOrdered) {
  const AbortRecord a{AbortRecord::kStalled, 3, "'x' waited"};
  const AbortRecord b{AbortRecord::kStalled, 3, "'y' waited"};
  EXPECT_NE(a.Before(b), b.Before(a));
  EXPECT_FALSE(a.Before(a));
  EXPECT_TRUE((AbortRecord{AbortRecord::kStalled, 2, "z"}).Before(a));
  EXPECT_TRUE((AbortRecord{AbortRecord::kDied, 7, "z"}).Before(a));
  // A text that is truncated in transit keeps its position.
  const std::string text(2 * AbortRecord::kMaxText, 'x');
  const AbortRecord whole{AbortRecord::kFailed, 1, text};
  const AbortRecord cut{AbortRecord::kFailed, 1,
                        text.substr(0, AbortRecord::kMaxText)};
  EXPECT_EQ(whole.Key(), cut.Key());
}

TEST(AbortBoardTest, IncompleteSlotIsSkipped) {
  const auto segment = NewSegment(2);
  AbortBoard board(segment->abort_state(), segment->abort_slots(), 2, 0);
  ASSERT_TRUE(board.Write({AbortRecord::kStalled, 7, "whole"}));
  segment->abort_slots()[1].version = 1;  // its writer died here
  EXPECT_EQ(board.Smallest()->text, "whole");
}

TEST(AbortBoardTest, ManyThreadsWriteAndRead) {
  const auto segment = NewSegment(4);
  std::vector<std::thread> threads;
  for (int own = 0; own < 4; ++own) {
    threads.emplace_back([&segment, own] {
      AbortBoard board(segment->abort_state(), segment->abort_slots(), 4, own);
      for (int rank = 200 + own; rank >= own; --rank) {
        board.Write({AbortRecord::kFailed, rank, std::to_string(rank)});
        const auto record = board.Smallest();
        ASSERT_TRUE(record);
        ASSERT_EQ(record->text, std::to_string(record->rank));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  AbortBoard board(segment->abort_state(), segment->abort_slots(), 4, 0);
  EXPECT_EQ(board.Smallest()->rank, 0);
}

TEST(AbortPathTest, FindsAllDeadRanksAndIgnoresThoseThatLeft) {
  const auto segment = NewSegment(4);
  ASSERT_TRUE(segment->ClaimAlive(0).ok());
  Holder leaving(segment->name(), 4, 1);
  Holder dead_two(segment->name(), 4, 2);
  Holder dead_three(segment->name(), 4, 3);
  Topology topology;
  topology.size = 5;
  topology.rank = 1;
  topology.nodes = {{0}, {1, 2, 3, 4}};
  topology.hosts = {"a", "b", "b", "b", "b"};
  AbortPath path(&topology, segment.get(), nullptr);
  int64_t now = 10 * AbortPath::kLookNs;
  EXPECT_FALSE(path.Poll(now));
  leaving.Leave();
  dead_three.Kill();
  // Not before the next check is due, and never past a living rank.
  EXPECT_FALSE(path.Poll(now + 1));
  now += AbortPath::kLookNs;
  EXPECT_FALSE(path.Poll(now));
  dead_two.Kill();
  now += AbortPath::kLookNs;
  const auto record = path.Poll(now);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->error_class, AbortRecord::kDied);
  EXPECT_EQ(record->rank, 3);
  EXPECT_EQ(record->text.rfind("rank 3 (b) died", 0), 0u) << record->text;
}

TEST(ShmSegmentTest, ClosedFileIsNotADeath) {
  const auto segment = NewSegment(2);
  EXPECT_TRUE(segment->HasDied(1));  // no process claims that rank
  segment->LoseFile(0);
  // A rank without its file cannot report others as dead, and is not dead
  // itself.
  EXPECT_FALSE(segment->HasDied(1));
  EXPECT_TRUE(segment->HasLeft(0));
}

// The exit code of a process that closes all files; `on_cut` ends it.
int ExitCodeOfCut(void (*on_cut)()) {
  const pid_t child = fork();
  if (child == 0) {
    const FdGuard guard(on_cut);
    // A direct system call, because ThreadSanitizer would report the race.
    for (int number = 3; number < 1024; ++number) syscall(SYS_close, number);
    pause();
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(FdGuardTest, DetectsClosedFiles) {
  constexpr int kNoticed = 7;
  EXPECT_EQ(ExitCodeOfCut([] { _exit(kNoticed); }), kNoticed);
}

// After a signal handler it used to read again from the number of its pipe. It
// took a byte from a file that the script had opened meanwhile with that
// number.
TEST(FdGuardTest, ThreadBlocksSignals) {
  constexpr int kTakesNone = 7;
  const int code = ExitCodeOfCut([] {
    sigset_t blocked;
    sigemptyset(&blocked);
    pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
    int taken = 0;
    for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGPROF, SIGCHLD}) {
      taken += sigismember(&blocked, number) == 1 ? 0 : 1;
    }
    _exit(kTakesNone + taken);
  });
  EXPECT_EQ(code, kTakesNone);
}

TEST(FdGuardTest, EndsQuietly) {
  const int free_number = dup(0);
  close(free_number);
  {
    const FdGuard guard([] { ADD_FAILURE() << "no file was closed"; });
  }
  const int still_free = dup(0);
  close(still_free);
  EXPECT_EQ(still_free, free_number);
}

TEST(OpenFileTest, ReusedNumberIsNotClosed) {
  OpenFile file(open("/dev/null", O_RDONLY));
  ASSERT_TRUE(file.IsOpen());
  close(file.number());
  EXPECT_FALSE(file.IsOpen());
  const int other = open("/dev/zero", O_RDONLY);
  ASSERT_EQ(other, file.number());
  file.Close();
  EXPECT_EQ(close(other), 0);
}

TEST(AbortPathTest, RaisingWakesTheNode) {
  const auto segment = NewSegment(2);
  Topology topology;
  topology.size = 2;
  topology.nodes = {{0, 1}};
  topology.hosts = {"a", "a"};
  Topology other = topology;
  other.rank = 1;
  AbortPath path(&topology, segment.get(), nullptr);
  AbortPath neighbour(&other, segment.get(), nullptr);
  std::thread sleeper(
      [&segment] { segment->doorbell(1)->Wait(60'000'000'000); });
  path.Raise({AbortRecord::kFailed, 0, "failed"});
  sleeper.join();
  EXPECT_EQ(neighbour.Poll(0)->text, "failed");
}

}  // namespace
}  // namespace tf_hvd
