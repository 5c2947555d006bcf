#include "runtime/executor.h"

#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "runtime/fusion_plan.h"

namespace tf_hvd {
namespace {

int64_t GroupBytes(const std::vector<Run>& runs,
                   const std::vector<size_t>& group) {
  int64_t bytes = 0;
  for (const size_t i : group) {
    const Run& run = runs[i];
    bytes += run.own.has_value() ? ExpectedBytes(*run.own, run.ranks->size())
                                 : TotalBytes(run.record);
  }
  return bytes;
}

// Nobody can say when a late message arrives, if at all.
void KeepForEver(std::vector<std::shared_ptr<void>> memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard<std::mutex> lock(mutex);
  for (std::shared_ptr<void>& one : memory) kept->push_back(std::move(one));
}

// Bytes of one row: of all dimensions but the first.
int64_t RowBytes(const TensorSpec& tensor) {
  auto bytes = static_cast<int64_t>(SizeOf(tensor.dtype));
  for (size_t i = 1; i < tensor.shape.size(); ++i) bytes *= tensor.shape[i];
  return bytes;
}

ReduceOptions OptionsOf(const Record& record, DType dtype) {
  return {dtype, record.reduce_op, record.prescale, record.postscale, 1.0};
}

}  // namespace

Executor::~Executor() { KeepForEver(std::move(graveyard_)); }

void Executor::Add(std::vector<Run> frame) {
  Frame added;
  added.plan = PlanFusion(frame, fusion_threshold_);
  added.runs = std::move(frame);
  frames_.push_back(std::move(added));
  has_work_ = true;
}

bool Executor::RunNext(int64_t max_bytes, const Pump& pump, Status* status) {
  if (frames_.empty() || broken_ || running_) return false;
  Frame& frame = frames_.front();  // stays in place while the pump adds others
  const std::vector<size_t>& group = frame.plan[frame.next];
  if (GroupBytes(frame.runs, group) > max_bytes) return false;
  running_ = true;
  *status = RunGroup(&frame, group, pump);
  running_ = false;
  if (!status->ok()) {
    broken_ = true;
    return true;
  }
  if (++frame.next == frame.plan.size()) frames_.pop_front();
  has_work_ = !frames_.empty();
  return true;
}

Status Executor::RunGroup(Frame* frame, const std::vector<size_t>& group,
                          const Pump& pump) {
  std::vector<Run*> runs;
  for (const size_t i : group) runs.push_back(&frame->runs[i]);
  Run* first = runs.front();
  if (!first->error.empty()) {
    End(first, FailedPrecondition(first->error));
    return Status::Ok();
  }
  const Status status = first->record.kind == OpKind::kAllreduce
                            ? Allreduce(runs, pump)
                            : RunOne(first, pump);
  if (!status.ok()) {
    return status.WithContext(std::string(NameOf(first->record.kind)) + " '" +
                              first->name + "'");
  }
  for (Run* run : runs) End(run, Status::Ok());
  return Status::Ok();
}

Status Executor::RunOne(Run* run, const Pump& pump) {
  switch (run->record.kind) {
    case OpKind::kAllgather:
      return Allgather(run, pump);
    case OpKind::kBroadcast:
      return Broadcast(run, pump);
    case OpKind::kAlltoall:
      return Alltoall(run, pump);
    case OpKind::kReducescatter:
      return Reducescatter(run, pump);
    default:  // join, barrier and changes of sets are done by being in order
      return Status::Ok();
  }
}

// One reduction for each type: only a single group holds more than one.
Status Executor::Allreduce(const std::vector<Run*>& runs, const Pump& pump) {
  std::map<DType, std::vector<Span>> spans;
  for (const Run* run : runs) {
    for (size_t i = 0; i < run->record.tensors.size(); ++i) {
      Span span;
      span.count = ElementCount(run->record.tensors[i].shape);
      if (run->own.has_value()) {  // else: joined, takes part with zeros
        span.input = run->own->tensors[i].input;
        span.output = run->own->tensors[i].output;
      }
      spans[run->record.tensors[i].dtype].push_back(span);
    }
  }
  for (const auto& [dtype, of_type] : spans) {
    TF_HVD_RETURN_IF_ERROR(
        data_->Allreduce(*runs.front()->ranks, of_type,
                         OptionsOf(runs.front()->record, dtype), pump));
  }
  return Status::Ok();
}

// First the first dimensions, which may differ between ranks, then the rows. A
// rank that has joined has none, and takes those of the others only because
// every rank passes them on.
Status Executor::Allgather(Run* run, const Pump& pump) {
  const std::vector<int>& ranks = *run->ranks;
  const std::vector<TensorSpec>& tensors = run->record.tensors;

  std::vector<int64_t> mine(tensors.size(), 0);
  for (size_t t = 0; run->own.has_value() && t < tensors.size(); ++t) {
    mine[t] = run->own->tensors[t].first_dim;
  }
  std::vector<int64_t> all(ranks.size() * mine.size());
  const std::vector<int64_t> sizes(
      ranks.size(), static_cast<int64_t>(mine.size() * sizeof(int64_t)));
  TF_HVD_RETURN_IF_ERROR(
      data_->Allgather(ranks, mine.data(), sizes, all.data(), pump));

  for (size_t t = 0; t < tensors.size(); ++t) {
    std::vector<int64_t> first_dims;
    std::vector<int64_t> bytes;
    for (size_t i = 0; i < ranks.size(); ++i) {
      first_dims.push_back(all[i * mine.size() + t]);
      bytes.push_back(first_dims.back() * RowBytes(tensors[t]));
    }
    if (!run->own.has_value()) {
      TF_HVD_RETURN_IF_ERROR(PassOnRows(ranks, bytes, pump));
      continue;
    }
    TensorBuffers& own = run->own->tensors[t];
    TF_HVD_RETURN_IF_ERROR(run->own->allocate(t, first_dims, &own.output));
    TF_HVD_RETURN_IF_ERROR(
        data_->Allgather(ranks, own.input, bytes, own.output, pump));
  }
  return Status::Ok();
}

Status Executor::PassOnRows(const std::vector<int>& ranks,
                            const std::vector<int64_t>& bytes,
                            const Pump& pump) {
  const int64_t total = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  const std::shared_ptr<char> unused(new char[static_cast<size_t>(total) + 1],
                                     std::default_delete<char[]>());
  const Status status =
      data_->Allgather(ranks, nullptr, bytes, unused.get(), pump);
  if (!status.ok()) graveyard_.push_back(unused);
  return status;
}

// As allgather, with other numbers for each pair of ranks.
Status Executor::Alltoall(Run* run, const Pump& pump) {
  if (!run->own.has_value()) return Internal("bug in tf_hvd: no own tensor");
  const std::vector<int>& ranks = *run->ranks;
  Entry& own = *run->own;
  std::vector<int64_t> rows(ranks.size());  // from each rank
  const std::vector<int64_t> one(ranks.size(), sizeof(int64_t));
  TF_HVD_RETURN_IF_ERROR(
      data_->Alltoall(ranks, own.splits.data(), one, rows.data(), one, pump));

  const int64_t row_bytes = RowBytes(run->record.tensors[0]);
  std::vector<int64_t> send;
  std::vector<int64_t> receive;
  for (size_t i = 0; i < ranks.size(); ++i) {
    send.push_back(own.splits[i] * row_bytes);
    receive.push_back(rows[i] * row_bytes);
  }
  TensorBuffers& tensor = own.tensors[0];
  TF_HVD_RETURN_IF_ERROR(own.allocate(0, rows, &tensor.output));
  return data_->Alltoall(ranks, tensor.input, send, tensor.output, receive,
                         pump);
}

Status Executor::Reducescatter(Run* run, const Pump& pump) {
  if (!run->own.has_value()) return Internal("bug in tf_hvd: no own tensor");
  const std::vector<int>& ranks = *run->ranks;
  for (size_t t = 0; t < run->record.tensors.size(); ++t) {
    const TensorSpec& tensor = run->record.tensors[t];
    const TensorBuffers& own = run->own->tensors[t];
    const int64_t row_elements =
        RowBytes(tensor) / static_cast<int64_t>(SizeOf(tensor.dtype));
    std::vector<int64_t> counts;
    for (size_t place = 0; place < ranks.size(); ++place) {
      counts.push_back(row_elements *
                       ScatteredRows(tensor.shape[0], ranks.size(), place));
    }
    TF_HVD_RETURN_IF_ERROR(
        data_->Reducescatter(ranks, own.input, counts, own.output,
                             OptionsOf(run->record, tensor.dtype), pump));
  }
  return Status::Ok();
}

Status Executor::Broadcast(Run* run, const Pump& pump) {
  if (!run->own.has_value()) return Internal("bug in tf_hvd: no own tensor");
  const int root = run->record.root;
  for (size_t t = 0; t < run->record.tensors.size(); ++t) {
    TensorBuffers& tensor = run->own->tensors[t];
    const int64_t bytes =
        tensor.count *
        static_cast<int64_t>(SizeOf(run->record.tensors[t].dtype));
    // The root only reads, so it may send from memory that is not its own.
    void* data = run->is_root ? const_cast<void*>(tensor.input) : tensor.output;
    TF_HVD_RETURN_IF_ERROR(
        data_->Broadcast(*run->ranks, root, data, bytes, pump));
    if (run->is_root && tensor.output != tensor.input && bytes > 0) {
      std::memcpy(tensor.output, tensor.input, static_cast<size_t>(bytes));
    }
  }
  return Status::Ok();
}

void Executor::End(Run* run, const Status& status) {
  if (!run->own.has_value()) return;
  Entry own = std::move(*run->own);
  run->own.reset();
  host_->Ended({run->set, run->name}, std::move(own.done), status, run->last);
}

void Executor::Fail(const Status& status) {
  const bool in_use = data_->memory_in_use();
  for (Frame& frame : frames_) {
    for (Run& run : frame.runs) {
      if (in_use && run.own.has_value()) {
        graveyard_.push_back(run.own->keepalive);
      }
      End(&run, status);
    }
  }
  frames_.clear();
  has_work_ = false;
}

}  // namespace tf_hvd
