#include "runtime/transport/gpu/operation.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/config.h"

namespace tf_hvd {
namespace {

// How long kernels of ours may take that lie behind an aborted call of NCCL.
constexpr int64_t kDrainNs = 2 * kSecond;

// What the device is to read of a step: the rows of a launch.
struct StepRows {
  const void* data = nullptr;
  size_t bytes = 0;
};

StepRows RowsOf(const GpuStep& step) {
  if (const auto* const move = std::get_if<GpuMove>(&step)) {
    return {move->rows.data(), move->row_bytes()};
  }
  if (const auto* const adasum = std::get_if<GpuAdasum>(&step)) {
    return {adasum->rows.data(), adasum->row_bytes()};
  }
  if (const auto* const sum = std::get_if<GpuSum>(&step)) {
    return {sum->list.data(), sum->row_bytes()};
  }
  return {};
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
  steps_ = PlanOnGpu(
      spec_, me_, {on_->staging.get(), backend_->options_.staging_bytes},
      /*by_mpi=*/communicator_ != nullptr && !communicator_->reduces());
  backend_->putting_.push_back(this);
}

GpuOperation::~GpuOperation() {
  LeaveTurn();
  if (rows_.bytes > 0) backend_->GiveBack(std::move(rows_));
}

void GpuOperation::LeaveTurn() {
  auto& putting = backend_->putting_;
  putting.erase(std::remove(putting.begin(), putting.end(), this),
                putting.end());
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
  if (ended_ == nullptr) return Put(poll);
  poll->enqueued = ended_;
  TF_HVD_RETURN_IF_ERROR(on_->device->HasFired(*ended_, &poll->done));
  if (!poll->done && !inputs_made_ && spec_.memory.ready != nullptr) {
    TF_HVD_RETURN_IF_ERROR(
        on_->device->HasFired(*spec_.memory.ready, &inputs_made_));
    poll->computing = !inputs_made_;
  }
  if (poll->done || communicator_ == nullptr) return Status::Ok();
  // What lies on the stream does not end if a rank has gone: NCCL says so.
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

// What is put on the stream of a device lies there in the agreed order, for all
// sets together.
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
    if (next_ == steps_.size()) break;
    TF_HVD_RETURN_IF_ERROR(PutStep(steps_[next_++]));
  }
  LeaveTurn();
  TF_HVD_RETURN_IF_ERROR(on_->device->Record(on_->stream, &ended_));
  poll->enqueued = ended_;
  return Status::Ok();
}

// The stream waits until TensorFlow's has made the inputs, and is done with
// what the outputs' memory held before.
Status GpuOperation::Begin() {
  if (spec_.memory.ready != nullptr) {
    TF_HVD_RETURN_IF_ERROR(on_->device->Wait(on_->stream, *spec_.memory.ready));
  }
  size_t bytes = 0;
  for (const GpuStep& step : steps_) bytes += RowsOf(step).bytes;
  begun_ = true;
  if (bytes == 0) return Status::Ok();
  TF_HVD_RETURN_IF_ERROR(backend_->TakeRows(*on_, bytes, &rows_));
  char* to = rows_.pinned.get();
  for (const GpuStep& step : steps_) {
    const StepRows rows = RowsOf(step);
    if (rows.bytes > 0) std::memcpy(to, rows.data, rows.bytes);
    to += rows.bytes;
  }
  return on_->device->Copy(on_->stream, rows_.on_device.get(),
                           rows_.pinned.get(), bytes);
}

Status GpuOperation::PutStep(const GpuStep& step) {
  if (const auto* const move = std::get_if<GpuMove>(&step)) {
    return Launch(*move);
  }
  if (const auto* const adasum = std::get_if<GpuAdasum>(&step)) {
    return Launch(*adasum);
  }
  if (const auto* const sum = std::get_if<GpuSum>(&step)) return Launch(*sum);
  return communicator_->Put(std::get<GpuCall>(step), on_->stream);
}

Status GpuOperation::Launch(const GpuMove& move) {
  return on_->device->Launch(on_->stream, move, NextRows(move.row_bytes()));
}

Status GpuOperation::Launch(const GpuAdasum& adasum) {
  AdasumArguments arguments = adasum.arguments;
  arguments.rows = static_cast<const AdasumRow*>(NextRows(adasum.row_bytes()));
  void* values[] = {&arguments};
  return on_->device->Launch(on_->stream, adasum.kernel, adasum.blocks,
                             GpuAdasum::kThreads, values);
}

Status GpuOperation::Launch(const GpuSum& sum) {
  SumRowsArguments arguments = sum.arguments;
  arguments.order = static_cast<const int64_t*>(NextRows(sum.row_bytes()));
  arguments.ends = arguments.order + arguments.rows;
  void* values[] = {&arguments};
  return on_->device->Launch(on_->stream, sum.kernel, sum.blocks(),
                             kSumRowsThreads, values);
}

// The rows of launches lie one behind the other, in the order of the steps.
const void* GpuOperation::NextRows(size_t bytes) {
  const char* const rows = rows_.on_device.get() + rows_used_;
  rows_used_ += bytes;
  return rows;
}

bool GpuOperation::Abandon() {
  if (bootstrap_ != nullptr && !bootstrap_->Abandon()) return false;
  const bool stopped = communicator_ == nullptr || backend_->AbortAll();
  if (!begun_) return true;
  if (!stopped) return false;
  // Kernels behind the call still run; then nothing does.
  bool fired = false;
  Status status = ended_ != nullptr ? Status::Ok()
                                    : on_->device->Record(on_->stream, &ended_);
  const int64_t deadline_ns = NowNs() + kDrainNs;
  while (status.ok() && !fired && NowNs() < deadline_ns) {
    status = on_->device->HasFired(*ended_, &fired);
    if (!fired) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return fired;
}

}  // namespace tf_hvd
