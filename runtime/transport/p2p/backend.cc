#include "runtime/transport/p2p/backend.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/clock.h"
#include "compute/buffer_ops.h"
#include "runtime/contract/rank_group.h"
#include "runtime/contract/spans.h"
#include "runtime/transport/p2p/adasum.h"
#include "runtime/transport/p2p/allreduce.h"
#include "runtime/transport/p2p/gather.h"
#include "runtime/transport/p2p/message_set.h"
#include "runtime/transport/p2p/scatter.h"
#include "runtime/transport/p2p/schedule.h"

namespace tf_hvd {
namespace {

// Up to these sizes the number of messages counts more than their length: of
// all ranks' data together, or of one rank's.
constexpr size_t kSmallTogether = size_t{64} << 10;
constexpr size_t kSmallEach = size_t{1} << 10;

bool IsSmall(size_t bytes, size_t ranks) {
  return bytes <= std::max(kSmallTogether / ranks, kSmallEach);
}

Status CheckReducible(OpKind kind, const ReduceOptions& options) {
  if (kind == OpKind::kAllreduce && options.op == ReduceOp::kAdasum &&
      IsFloating(options.dtype)) {
    return Status::Ok();
  }
  if (IsReducible(options.dtype, options.op)) return Status::Ok();
  return Internal(std::string("bug in tf_hvd: no reduction ") +
                  NameOf(options.op) + " of " + NameOf(options.dtype));
}

// Blocks of memory that stay for later operations: as many as are under way at
// once, as a rule.
constexpr size_t kKept = 4;

// Operations that may be under way at the same time have different tags, or one
// of them waits for the other on all ranks that they share.
int TagOf(const OperationSpec& spec) {
  constexpr uint64_t of_one_set = P2PBackend::kOfOneSet;
  const uint64_t place =
      static_cast<uint64_t>(spec.set) * of_one_set + spec.number % of_one_set;
  return static_cast<int>(place % P2PBackend::kTags);
}

}  // namespace

class P2POperation final : public Operation {
 public:
  P2POperation(P2PBackend* backend, OperationSpec spec, size_t me)
      : backend_(backend),
        spec_(std::move(spec)),
        group_{*spec_.ranks, me},
        runs_(spec_.spans, Reduces(spec_.kind) ? SizeOf(spec_.reduce.dtype) : 1,
              group_.size()),
        spans_(runs_.list()),
        tag_(backend->first_tag_ + TagOf(spec_)),
        messages_(backend->p2p_, tag_, backend->max_message_bytes_) {}

  ~P2POperation() override {
    if (staging_.memory != nullptr) backend_->GiveBack(std::move(staging_));
    if (begun_) backend_->tags_.erase(tag_);
  }

  Status Progress(int64_t budget_ns, Poll* poll) override {
    if (!begun_) {
      if (!backend_->tags_.insert(tag_).second) return Status::Ok();
      begun_ = true;
      Write();
    }
    const int64_t until_ns = NowNs() + budget_ns;
    poll->part = schedule_.part();
    while (Schedule::Step* step = schedule_.Due()) {
      if (step->kind == Schedule::Step::kWait) {
        int awaited = -1;
        TF_HVD_RETURN_IF_ERROR(
            messages_.Test(step->lane, &poll->moved, &awaited));
        if (awaited >= 0) {
          poll->awaited = awaited;
          return Status::Ok();
        }
        schedule_.Done();
        continue;
      }
      TF_HVD_RETURN_IF_ERROR(Take(step));
      const int64_t now_ns = NowNs();
      poll->Did(did_, now_ns);
      if (now_ns >= until_ns) return Status::Ok();
    }
    poll->done = true;
    return Status::Ok();
  }

  bool Abandon() override { return messages_.Abandon(); }

 private:
  // One step, or one block of it.
  Status Take(Schedule::Step* step) {
    did_ = Phase::kExchange;
    switch (step->kind) {
      case Schedule::Step::kSend:
        TF_HVD_RETURN_IF_ERROR(
            messages_.Send(step->lane, step->peer, step->data, step->bytes));
        break;
      case Schedule::Step::kReceive:
        TF_HVD_RETURN_IF_ERROR(
            messages_.Receive(step->lane, step->peer, step->data, step->bytes));
        break;
      default: {
        did_ = step->copies ? Phase::kPack : Phase::kReduce;
        const int64_t count = std::min(step->block, step->count - worked_);
        step->work(worked_, count);
        worked_ += count;
        if (worked_ < step->count) return Status::Ok();
        worked_ = 0;
      }
    }
    schedule_.Done();
    return Status::Ok();
  }

  void Write() {
    switch (spec_.kind) {
      case OpKind::kAllreduce:
        return WriteAllreduce();
      case OpKind::kBroadcast:
        return WriteBroadcast();
      case OpKind::kAllgather:
        return WriteAllgather();
      case OpKind::kAlltoall:
        return ExchangeAll(group_, static_cast<const char*>(spec_.input),
                           OffsetsOf<size_t>(spec_.send),
                           static_cast<char*>(spec_.output),
                           OffsetsOf<size_t>(spec_.receive), &schedule_);
      default:
        return WriteReducescatter();
    }
  }

  Staging Stage() {
    return [this](size_t bytes) {
      staging_ = backend_->Take(bytes);
      return staging_.memory.get();
    };
  }

  void WriteAllreduce() {
    const ReduceOptions sums = AverageAsSum(spec_.reduce, group_.size());
    if (spans_.count() == 0) return;
    if (group_.size() == 1) return ReduceAlone(spans_, sums, &schedule_);
    if (sums.op == ReduceOp::kAdasum) {
      return ReduceAdasum(group_, spans_, sums, Stage(), &schedule_);
    }
    const size_t bytes =
        static_cast<size_t>(spans_.count()) * spans_.element_bytes();
    const auto reduce =
        IsSmall(bytes, group_.size()) ? ReduceSmall : ReduceLarge;
    reduce(group_, spans_, sums, Stage(), &schedule_);
  }

  void WriteBroadcast() {
    BroadcastFrom(group_, spec_.root, spans_, spec_.of_pieces, Stage(),
                  &schedule_);
  }

  void WriteAllgather() {
    const auto bytes = static_cast<size_t>(spans_.count());
    const bool small = bytes <= kSmallTogether && group_.size() > 1;
    const auto gather = small ? ShortGather : DirectGather;
    gather(group_, runs_, Stage(), &schedule_);
  }

  void WriteReducescatter() {
    const ReduceOptions sums = AverageAsSum(spec_.reduce, group_.size());
    if (group_.size() == 1) return ReduceAlone(spans_, sums, &schedule_);
    ReduceScatterPieces(group_, runs_, sums, Stage(), &schedule_);
  }

  P2PBackend* const backend_;
  const OperationSpec spec_;
  const RankGroup group_;
  const RankRuns runs_;
  const SpanList& spans_;
  const int tag_;
  bool begun_ = false;
  P2PBackend::Block staging_;
  Schedule schedule_;
  Phase did_ = Phase::kExchange;  // what was done last
  int64_t worked_ = 0;            // elements of the step that is due
  MessageSet messages_;
};

bool P2PBackend::Serves(const OperationSpec& spec) const {
  return spec.memory.kind != MemoryKind::kDevice;
}

Status P2PBackend::Make(OperationSpec spec,
                        std::unique_ptr<Operation>* operation) {
  size_t me = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(spec, rank_, &me));
  if (Reduces(spec.kind)) {
    TF_HVD_RETURN_IF_ERROR(CheckReducible(spec.kind, spec.reduce));
  }
  *operation = std::make_unique<P2POperation>(this, std::move(spec), me);
  return Status::Ok();
}

P2PBackend::Block P2PBackend::Take(size_t bytes) {
  const auto enough = [bytes](const Block& block) {
    return block.bytes >= bytes;
  };
  const auto found = std::find_if(free_.begin(), free_.end(), enough);
  Block block;
  if (found != free_.end()) {
    block = std::move(*found);
    free_.erase(found);
  } else {
    free_.clear();  // too small: what comes next is no smaller, as a rule
    block.memory.reset(new char[bytes]);
    block.bytes = bytes;
  }
  return block;
}

void P2PBackend::GiveBack(Block block) {
  if (free_.size() < kKept) free_.push_back(std::move(block));
}

}  // namespace tf_hvd
