#include "runtime/transport/p2p/operation.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace tf_hvd {
namespace {

// Operations that may be in progress at the same time have different tags, or
// one of them waits for the other on all ranks that they share.
int TagOf(const OperationSpec& spec) {
  constexpr uint64_t of_one_set = P2PBackend::kOfOneSet;
  const uint64_t place =
      static_cast<uint64_t>(spec.set) * of_one_set + spec.number % of_one_set;
  return static_cast<int>(place % P2PBackend::kTags);
}

}  // namespace

P2POperation::P2POperation(P2PBackend* backend, OperationSpec spec, size_t me)
    : backend_(backend),
      spec_(std::move(spec)),
      group_{*spec_.ranks, me},
      runs_(spec_.spans, Reduces(spec_.kind) ? SizeOf(spec_.reduce.dtype) : 1,
            group_.size()),
      tag_(backend->first_tag_ + TagOf(spec_)),
      messages_(backend->p2p_, tag_, backend->max_message_bytes_) {}

P2POperation::~P2POperation() {
  if (staging_.memory != nullptr) backend_->GiveBack(std::move(staging_));
  if (begun_) backend_->tags_.erase(tag_);
}

Status P2POperation::Progress(int64_t budget_ns, Poll* poll) {
  if (!begun_) {
    if (!backend_->tags_.insert(tag_).second) return Status::Ok();
    begun_ = true;
    PlanByMessages(
        spec_, group_, runs_,
        [this](size_t bytes) {
          staging_ = backend_->Take(bytes);
          return staging_.memory.get();
        },
        &plan_);
  }
  const int64_t until_ns = NowNs() + budget_ns;
  poll->part = plan_.part();
  while (P2PPlan::Step* step = plan_.Due()) {
    if (step->kind == P2PPlan::Step::kWait) {
      int awaited = -1;
      TF_HVD_RETURN_IF_ERROR(
          messages_.Test(step->lane, &poll->moved, &awaited));
      if (awaited >= 0) {
        poll->awaited = awaited;
        return Status::Ok();
      }
      plan_.Done();
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

Status P2POperation::Take(P2PPlan::Step* step) {
  did_ = Phase::kExchange;
  switch (step->kind) {
    case P2PPlan::Step::kSend:
      TF_HVD_RETURN_IF_ERROR(
          messages_.Send(step->lane, step->peer, step->data, step->bytes));
      break;
    case P2PPlan::Step::kReceive:
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
  plan_.Done();
  return Status::Ok();
}

}  // namespace tf_hvd
