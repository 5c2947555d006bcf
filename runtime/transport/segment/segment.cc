#include "runtime/transport/segment/segment.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>

namespace tf_hvd {

// Initially zero; zero is the initial state of each part.
struct ShmSegment::Header {
  alignas(64) AbortState abort;
  std::atomic<uint32_t> end;  // an End
};

struct ShmSegment::RankState {
  alignas(64) Doorbell doorbell;
  std::atomic<uint32_t> left;
  std::atomic<int32_t> core;  // plus 1; 0: unknown
};

namespace {

enum End : uint32_t { kOpen = 0, kTogether = 1, kNever = 2 };

size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

// The offsets of the parts.
struct Layout {
  Layout(const ShmShape& shape, size_t header_bytes, size_t rank_bytes) {
    const auto ranks = static_cast<size_t>(shape.local_size);
    ranks_at = RoundUp(header_bytes);
    slots_at = ranks_at + ranks * RoundUp(rank_bytes);
    rings_at = slots_at + RoundUp(ranks * sizeof(AbortSlot));
    arena_at = RoundUp(rings_at + 2 * (ranks - 1) * sizeof(ShmRing));
    bytes = arena_at;
    if (shape.has_arena) bytes += ShmArena::BytesFor(shape.local_size);
  }
  // The slots of a rank in the arena; without an arena, the end.
  size_t SlotsOf(const ShmShape& shape, int local_rank) const {
    if (!shape.has_arena) return bytes;
    return arena_at + ShmArena::SlotsAt(shape.local_size, local_rank);
  }
  size_t ranks_at;
  size_t slots_at;
  size_t rings_at;
  size_t arena_at;
  size_t bytes;
};

std::string RandomName() {
  std::random_device random;
  char name[40];
  std::snprintf(name, sizeof(name), "/tf_hvd_%08x%08x%08x", random(), random(),
                random());
  return name;
}

// /dev/shm belongs to the environment: its errors come with advice.
Status ShmError(const std::string& what, size_t bytes) {
  const int error = errno;
  std::string text = "shared memory between the ranks on a machine: " + what +
                     " failed: " + std::strerror(error) + ".";
  if (error == ENOSPC || error == ENOMEM) {
    text += " /dev/shm has no room for " + std::to_string(bytes) +
            " bytes: remove old files there, enlarge it (docker run "
            "--shm-size=1g), or set TF_HVD_NODE_DATA=mpi, which is slower but "
            "needs little space there.";
  } else if (error == ENOENT || error == ENOSYS || error == EACCES) {
    text +=
        " /dev/shm must exist, be writable, and be the same for all ranks of "
        "the machine (containers: docker run --ipc=host).";
  }
  return FailedPrecondition(text);
}

// 0, or an error. A call interrupted by a signal must be repeated; each piece
// is short enough to finish before a profiler's next signal.
int Reserve(int file, size_t begin, size_t end) {
  constexpr size_t kPiece = size_t{1} << 20;
  int error = 0;
  for (size_t at = begin; error == 0 && at < end; at += kPiece) {
    do {
      error = posix_fallocate(file, static_cast<off_t>(at),
                              static_cast<off_t>(std::min(kPiece, end - at)));
    } while (error == EINTR);
  }
  return error;
}

struct flock ByteOf(int local_rank, int type) {
  struct flock lock = {};
  lock.l_type = static_cast<short>(type);
  lock.l_whence = SEEK_SET;
  lock.l_start = local_rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

ShmSegment::ShmSegment(std::string name, const ShmShape& shape)
    : name_(std::move(name)), shape_(shape) {}

ShmSegment::~ShmSegment() {
  RemoveName();
  const Layout layout(shape_, sizeof(Header), sizeof(RankState));
  if (memory_ != nullptr) munmap(memory_, layout.bytes);
  file_.Close();
}

size_t ShmSegment::BytesFor(const ShmShape& shape) {
  return Layout(shape, sizeof(Header), sizeof(RankState)).bytes;
}

Status ShmSegment::Create(const ShmShape& shape,
                          std::unique_ptr<ShmSegment>* result) {
  std::unique_ptr<ShmSegment> segment(new ShmSegment(RandomName(), shape));
  TF_HVD_RETURN_IF_ERROR(segment->Map(true));
  *result = std::move(segment);
  return Status::Ok();
}

Status ShmSegment::Attach(const std::string& name, const ShmShape& shape,
                          std::unique_ptr<ShmSegment>* result) {
  std::unique_ptr<ShmSegment> segment(new ShmSegment(name, shape));
  TF_HVD_RETURN_IF_ERROR(segment->Map(false));
  *result = std::move(segment);
  return Status::Ok();
}

Status ShmSegment::Map(bool create) {
  const Layout layout(shape_, sizeof(Header), sizeof(RankState));
  // shm_open sets close-on-exec.
  const int file =
      shm_open(name_.c_str(), O_RDWR | (create ? O_CREAT | O_EXCL : 0),
               S_IRUSR | S_IWUSR);
  if (file < 0) return ShmError("shm_open(" + name_ + ")", layout.bytes);
  file_ = OpenFile(file);
  named_ = create;
  if (create) {
    if (ftruncate(file, static_cast<off_t>(layout.bytes)) != 0) {
      return ShmError("ftruncate", layout.bytes);
    }
    errno = Reserve(file, 0, layout.SlotsOf(shape_, 0));
    if (errno != 0) return ShmError("posix_fallocate", layout.bytes);
  }
  void* memory =
      mmap(nullptr, layout.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return ShmError("mmap", layout.bytes);
  memory_ = static_cast<char*>(memory);
  return Status::Ok();
}

Status ShmSegment::ReserveSlots(int local_rank) {
  const Layout layout(shape_, sizeof(Header), sizeof(RankState));
  errno = Reserve(file_.number(), layout.SlotsOf(shape_, local_rank),
                  layout.SlotsOf(shape_, local_rank + 1));
  if (errno != 0) return ShmError("posix_fallocate", layout.bytes);
  return Status::Ok();
}

void ShmSegment::RemoveName() {
  if (named_) shm_unlink(name_.c_str());
  named_ = false;
}

// A lock of the process, not of the open file, which a forked child that
// outlives the rank would keep.
Status ShmSegment::ClaimAlive(int local_rank) {
  struct flock lock = ByteOf(local_rank, F_WRLCK);
  if (fcntl(file_.number(), F_SETLK, &lock) != 0)
    return ShmError("fcntl(F_SETLK)", 0);
  return Status::Ok();
}

void ShmSegment::MarkLeft(int local_rank) { rank_state(local_rank)->left = 1; }

bool ShmSegment::HasLeft(int local_rank) const {
  return rank_state(local_rank)->left != 0;
}

void ShmSegment::LoseFile(int local_rank) {
  file_lost_ = true;
  MarkLeft(local_rank);
}

bool ShmSegment::HasDied(int local_rank) const {
  // A rank that leaves normally marks that before it releases the lock, so the
  // checks are in this order.
  return !HolderOf(local_rank).has_value() && !HasLeft(local_rank);
}

std::optional<pid_t> ShmSegment::HolderOf(int local_rank) const {
  if (file_lost_) return 0;
  struct flock lock = ByteOf(local_rank, F_WRLCK);
  if (fcntl(file_.number(), F_GETLK, &lock) != 0) return 0;
  if (lock.l_type == F_UNLCK) return std::nullopt;
  return std::max<pid_t>(lock.l_pid, 0);
}

bool ShmSegment::SettleEnd(bool together) {
  uint32_t settled = kOpen;
  const uint32_t wanted = together ? kTogether : kNever;
  if (header()->end.compare_exchange_strong(settled, wanted)) return together;
  return settled == kTogether;
}

std::optional<bool> ShmSegment::settled_end() const {
  const uint32_t settled = header()->end;
  if (settled == kOpen) return std::nullopt;
  return settled == kTogether;
}

ShmSegment::RankState* ShmSegment::rank_state(int local_rank) const {
  const Layout layout(shape_, sizeof(Header), sizeof(RankState));
  return reinterpret_cast<RankState*>(memory_ + layout.ranks_at +
                                      static_cast<size_t>(local_rank) *
                                          RoundUp(sizeof(RankState)));
}

Doorbell* ShmSegment::doorbell(int local_rank) {
  return &rank_state(local_rank)->doorbell;
}

bool ShmSegment::SharesCore(int local_rank) {
  const int core = sched_getcpu() + 1;
  std::atomic<int32_t>& own = rank_state(local_rank)->core;
  // Usually it has not changed, and the other ranks keep their copy of the
  // line.
  if (own.load(std::memory_order_relaxed) != core) own = core;
  for (int rank = 0; rank < shape_.local_size; ++rank) {
    if (rank != local_rank &&
        rank_state(rank)->core.load(std::memory_order_relaxed) == core) {
      return true;
    }
  }
  return false;
}

AbortState* ShmSegment::abort_state() { return &header()->abort; }

AbortSlot* ShmSegment::abort_slots() {
  const Layout layout(shape_, sizeof(Header), sizeof(RankState));
  return reinterpret_cast<AbortSlot*>(memory_ + layout.slots_at);
}

ShmRing* ShmSegment::ring(int from, int to) {
  const Layout layout(shape_, sizeof(Header), sizeof(RankState));
  const bool down = from == 0;
  const auto pair = static_cast<size_t>(down ? to : from) - 1;
  auto* rings = reinterpret_cast<ShmRing*>(memory_ + layout.rings_at);
  return rings + 2 * pair + (down ? 1 : 0);
}

std::optional<ShmArena> ShmSegment::arena() {
  if (!shape_.has_arena) return std::nullopt;
  const Layout layout(shape_, sizeof(Header), sizeof(RankState));
  return ShmArena(memory_ + layout.arena_at, shape_.local_size);
}

}  // namespace tf_hvd
