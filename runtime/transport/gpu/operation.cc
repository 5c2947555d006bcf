#include "runtime/transport/gpu/operation.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/config.h"

namespace tf_hvd {
namespace {

// How long tf_hvd's kernels behind an aborted NCCL call may take.
constexpr int64_t kDrainNs = 2 * kSecond;

// Bytes of launch rows that the device reads.
size_t RowBytesOf(const GpuPlan& plan) {
  size_t bytes = 0;
  for (const GpuPiece& piece : plan.pieces) {
    bytes += piece.pack.row_bytes() + piece.unpack.row_bytes();
    for (const GpuStep& step : piece.steps) {
      const auto* const move = std::get_if<GpuMove>(&step);
      if (move != nullptr) bytes += move->row_bytes();
    }
  }
  return bytes;
}

}  // namespace

GpuOperation::GpuOperation(GpuBackend* backend, OperationSpec spec, size_t me,
                           GpuBackend::OnDevice* on,
                           std::shared_ptr<GpuCommunicator> communicator)
    : backend_(backend),
      spec_(std::move(spec)),
      me_(me),
      on_(on),
      communicator_(std::move(communicator)) {
  backend_->putting_.push_back(this);
}

Status GpuOperation::Plan() {
  const GpuOptions& options = backend_->options_;
  const bool by_mpi = communicator_ != nullptr && !communicator_->reduces();
  GpuStaging staging;
  staging.memory = on_->staging.get();
  staging.bytes = options.staging_bytes;
  staging.half = on_->half;
  plan_ = PlanOnGpu(spec_, me_, staging, options.limits, by_mpi);
  if (plan_.spare_bytes > 0) {
    TF_HVD_RETURN_IF_ERROR(
        backend_->Spare(on_, plan_.spare_bytes, &staging.spare));
    plan_ = PlanOnGpu(spec_, me_, staging, options.limits, by_mpi);
  }
  on_->half = plan_.next_half;
  return Status::Ok();
}

GpuOperation::~GpuOperation() {
  LeaveTurn();
  if (rows_.bytes > 0) backend_->GiveBack(std::move(rows_));
}

void GpuOperation::LeaveTurn() {
  for (auto* const turns : {&backend_->putting_, &on_->running}) {
    turns->erase(std::remove(turns->begin(), turns->end(), this), turns->end());
  }
}

Status GpuOperation::Bootstrap(Backend* host, NcclCommunicator* nccl) {
  connecting_ = nccl;
  mine_.ordinal = on_->device->ordinal();
  mine_.uuid = on_->device->uuid();
  SetSettings(NcclSettings(), &mine_);
  TF_HVD_RETURN_IF_ERROR(
      FromNccl(*backend_->nccl_, "ncclGetVersion",
               backend_->nccl_->get_version(&mine_.nccl_version)));
  if (me_ == 0) {
    TF_HVD_RETURN_IF_ERROR(FromNccl(*backend_->nccl_, "ncclGetUniqueId",
                                    backend_->nccl_->get_unique_id(&mine_.id)));
  }
  peers_.resize(spec_.ranks->size());
  OperationSpec exchange;
  exchange.kind = OpKind::kAllgather;
  exchange.ranks = spec_.ranks;
  exchange.set = spec_.set;
  exchange.number = spec_.number;
  for (PeerInfo& peer : peers_) {
    exchange.spans.push_back({&mine_, &peer, sizeof(PeerInfo)});
  }
  return host->Make(std::move(exchange), &bootstrap_);
}

Status GpuOperation::Progress(int64_t budget_ns, Poll* poll) {
  if (bootstrap_ != nullptr) return MoveBootstrap(budget_ns, poll);
  const bool was_put = ended_ != nullptr;
  if (!was_put) TF_HVD_RETURN_IF_ERROR(Put(poll));
  if (ended_ == nullptr) return Status::Ok();
  poll->enqueued = ended_;
  poll->rings = backend_->options_.ring.fn != nullptr;
  // Operations end in this order.
  if (!was_put || on_->running.front() != this) return Status::Ok();
  TF_HVD_RETURN_IF_ERROR(on_->device->HasFired(*ended_, &poll->done));
  if (!poll->done && !inputs_made_ && spec_.memory.ready != nullptr) {
    TF_HVD_RETURN_IF_ERROR(
        on_->device->HasFired(*spec_.memory.ready, &inputs_made_));
    poll->computing = !inputs_made_;
  }
  if (poll->done) {
    LeaveTurn();
    return Status::Ok();
  }
  if (communicator_ == nullptr) return Status::Ok();
  // The work on the stream does not end if a rank has died: NCCL reports that.
  bool ready = false;
  return communicator_->Ready(&ready);
}

Status GpuOperation::MoveBootstrap(int64_t budget_ns, Poll* poll) {
  TF_HVD_RETURN_IF_ERROR(bootstrap_->Progress(budget_ns, poll));
  if (!poll->done) return Status::Ok();
  poll->done = false;
  poll->moved = true;
  bootstrap_.reset();
  return Connect();
}

Status GpuOperation::Connect() {
  std::vector<std::string> names;
  for (const int rank : *spec_.ranks) {
    names.push_back(backend_->names_[static_cast<size_t>(rank)]);
  }
  TF_HVD_RETURN_IF_ERROR(
      CheckPeers(peers_, names, backend_->options_.shared_devices));
  return connecting_->Begin(peers_[0].id, peers_.size(), me_);
}

// A device's streams have all operations in the agreed order, across all sets.
Status GpuOperation::Put(Poll* poll) {
  if (backend_->putting_.front() != this) return Status::Ok();
  for (;;) {
    bool ready = true;
    if (communicator_ != nullptr) {
      TF_HVD_RETURN_IF_ERROR(communicator_->Ready(&ready));
    }
    if (!ready) return Status::Ok();
    poll->moved = true;
    if (!begun_) TF_HVD_RETURN_IF_ERROR(Begin());
    if (piece_ == plan_.pieces.size()) break;
    const GpuPiece& piece = plan_.pieces[piece_];
    if (!packed_) TF_HVD_RETURN_IF_ERROR(PutPack(piece));
    if (next_ < piece.steps.size()) {
      TF_HVD_RETURN_IF_ERROR(PutStep(piece.steps[next_++]));
      continue;
    }
    TF_HVD_RETURN_IF_ERROR(PutUnpack(piece));
    ++piece_;
    next_ = 0;
    packed_ = false;
  }
  return PutEnd();
}

Status GpuOperation::Begin() {
  begun_ = true;
  const size_t bytes = RowBytesOf(plan_);
  return bytes == 0 ? Status::Ok() : backend_->TakeRows(*on_, bytes, &rows_);
}

// Packs, and makes the calls wait for that, or for the events that packing
// would have waited for.
Status GpuOperation::PutPack(const GpuPiece& piece) {
  packed_ = true;
  const auto then =
      piece.steps.empty() ? GpuBackend::kUnpack : GpuBackend::kCalls;
  if (piece.pack.empty()) return WaitForInputs(then, piece.uses);
  TF_HVD_RETURN_IF_ERROR(WaitForInputs(GpuBackend::kPack, piece.uses));
  TF_HVD_RETURN_IF_ERROR(Launch(StreamFor(GpuBackend::kPack), piece.pack));
  return WaitFor(then, GpuBackend::kPack);
}

// Makes the stream wait until TensorFlow's stream has computed the inputs and
// no longer uses the previous content of the outputs' memory.
Status GpuOperation::WaitForInputs(GpuBackend::StreamKind stream,
                                   unsigned uses) {
  if (spec_.memory.ready != nullptr && !std::exchange(awaited_[stream], true)) {
    TF_HVD_RETURN_IF_ERROR(
        on_->device->Wait(StreamFor(stream), *spec_.memory.ready));
  }
  for (int i = 0; i < kGpuMemories; ++i) {
    const auto& last = on_->last_uses[i];
    if ((uses & (1U << i)) == 0 || last == nullptr) continue;
    TF_HVD_RETURN_IF_ERROR(on_->device->Wait(StreamFor(stream), *last));
  }
  return Status::Ok();
}

Status GpuOperation::WaitFor(GpuBackend::StreamKind stream,
                             GpuBackend::StreamKind other) {
  std::shared_ptr<GpuEvent> event;
  TF_HVD_RETURN_IF_ERROR(on_->device->Record(StreamFor(other), &event));
  return on_->device->Wait(StreamFor(stream), *event);
}

// Operations end on the stream that unpacks, even if there is nothing to
// unpack.
Status GpuOperation::PutUnpack(const GpuPiece& piece) {
  if (!piece.steps.empty()) {
    TF_HVD_RETURN_IF_ERROR(WaitFor(GpuBackend::kUnpack, GpuBackend::kCalls));
  }
  const CudaStream stream = StreamFor(GpuBackend::kUnpack);
  if (!piece.unpack.empty()) {
    TF_HVD_RETURN_IF_ERROR(Launch(stream, piece.unpack));
  }
  unpacked_.reset();
  if (piece.uses == 0) return Status::Ok();
  TF_HVD_RETURN_IF_ERROR(on_->device->Record(stream, &unpacked_));
  for (int i = 0; i < kGpuMemories; ++i) {
    if ((piece.uses & (1U << i)) != 0) on_->last_uses[i] = unpacked_;
  }
  return Status::Ok();
}

Status GpuOperation::PutEnd() {
  if (plan_.pieces.empty()) {
    TF_HVD_RETURN_IF_ERROR(WaitForInputs(GpuBackend::kUnpack, 0));
  }
  LeaveTurn();
  ended_ = unpacked_;
  if (ended_ == nullptr) {
    TF_HVD_RETURN_IF_ERROR(
        on_->device->Record(StreamFor(GpuBackend::kUnpack), &ended_));
  }
  on_->running.push_back(this);
  if (backend_->options_.ring.fn == nullptr) return Status::Ok();
  // On a separate stream, so that no other work waits for the host.
  const CudaStream bell = StreamFor(GpuBackend::kBell);
  TF_HVD_RETURN_IF_ERROR(on_->device->Wait(bell, *ended_));
  return on_->device->CallWhenDone(bell, backend_->options_.ring);
}

Status GpuOperation::PutStep(const GpuStep& step) {
  const CudaStream stream = StreamFor(GpuBackend::kCalls);
  if (const auto* const move = std::get_if<GpuMove>(&step)) {
    return Launch(stream, *move);
  }
  if (const auto* const sum = std::get_if<GpuSum>(&step)) return Launch(*sum);
  return communicator_->Put(std::get<GpuCall>(step), stream);
}

Status GpuOperation::Launch(CudaStream stream, const GpuMove& move) {
  return on_->device->Launch(stream, move, NextRows(move.row_bytes()));
}

Status GpuOperation::Launch(const GpuSum& sum) {
  SumArguments arguments = sum.arguments;
  void* values[] = {&arguments};
  return on_->device->Launch(StreamFor(GpuBackend::kCalls), sum.kernel,
                             sum.blocks(), kSumThreads, values);
}

// The device reads the rows in place, until the operation has ended.
char* GpuOperation::NextRows(size_t bytes) {
  char* const rows = rows_.memory.get() + rows_used_;
  rows_used_ += bytes;
  return rows;
}

// Aborts all communicators, whether or not this operation has one: calls that
// wait for another rank may precede it on the streams.
bool GpuOperation::Abandon() {
  if (bootstrap_ != nullptr && !bootstrap_->Abandon()) return false;
  const bool stopped = backend_->AbortAll();
  if (!begun_) return true;
  // Kernels behind the call still run; after that, nothing does.
  return stopped && Drain(NowNs() + kDrainNs);
}

bool GpuOperation::Drain(int64_t deadline_ns) {
  if (ended_ != nullptr) return HasFiredBy(*ended_, deadline_ns);
  for (const auto kind :
       {GpuBackend::kPack, GpuBackend::kCalls, GpuBackend::kUnpack}) {
    std::shared_ptr<GpuEvent> last;
    if (!on_->device->Record(StreamFor(kind), &last).ok()) return false;
    if (!HasFiredBy(*last, deadline_ns)) return false;
  }
  return true;
}

bool GpuOperation::HasFiredBy(const GpuEvent& event, int64_t deadline_ns) {
  bool fired = false;
  while (on_->device->HasFired(event, &fired).ok() && !fired &&
         NowNs() < deadline_ns) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return fired;
}

}  // namespace tf_hvd
