#include "kernels/xla/compiled_calls.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "kernels/local_checks.h"
#include "kernels/on_gpu.h"
#include "kernels/topology.h"
#include "kernels/verdict.h"
#include "kernels/xla/started_call.h"
#include "kernels/xla/step_threads.h"
#include "runtime/api/c_api.h"
#include "runtime/api/runtime.h"
#include "runtime/request/entry.h"

namespace tf_hvd {
namespace {

// How long an error waits for memory that a late message may still write to:
// XLA frees its buffers once the error is reported.
constexpr std::chrono::seconds kInUse{1};

// The name of a stream's device, for an error.
constexpr char kWhere[] = "a GPU";

// Calls that allow the runtime to use their memory. Any thread.
class OpenCalls {
 public:
  void Add(const std::shared_ptr<StartedCall>& call) {
    const MutexLock lock(&mutex_);
    calls_.insert(call);
  }

  // For a request that has this call: its memory is no longer needed.
  void Release(const std::shared_ptr<StartedCall>& call) {
    call->Release();
    const MutexLock lock(&mutex_);
    calls_.erase(call);
  }

  // A step has failed, and XLA frees the memory of its calls. Which calls those
  // are is unknown, so calls of other concurrent steps fail too.
  void Leave(const Status& status) {
    std::vector<std::shared_ptr<StartedCall>> calls;
    {
      const MutexLock lock(&mutex_);
      calls.assign(calls_.begin(), calls_.end());
    }
    const auto deadline = std::chrono::steady_clock::now() + kInUse;
    for (const auto& call : calls) call->Leave(status, deadline);
  }

 private:
  Mutex mutex_;
  std::unordered_set<std::shared_ptr<StartedCall>> calls_ GUARDED_BY(mutex_);
};

// Checks a call for errors that do not depend on the process set.
Status Check(const CompiledCall& call) {
  if (!call.error.empty()) return InvalidArgument(call.error);
  const Request& request = call.request;
  if (!Reduces(request.kind)) return Status::Ok();
  for (const TensorSpec& spec : request.tensors) {
    TF_HVD_RETURN_IF_ERROR(
        CheckReducible(request.kind, request.reduce_op, spec.dtype));
  }
  return Status::Ok();
}

// A call that a program was compiled with.
struct Known {
  explicit Known(std::string_view encoded)
      : text(encoded), status(DecodeCall(encoded, &call)), valid(Check(call)) {}

  const std::string text;
  CompiledCall call;
  const Status status;  // whether the text encodes a call
  const Status valid;
};

Status OtherRanks(const Membership& membership) {
  return InvalidArgument(
      "this step was compiled for a different number of ranks than the " +
      std::to_string(membership.ranks) +
      " of this job: call tf.function again");
}

// Elements in `rows` rows of a tensor.
int64_t CountIn(const TensorSpec& spec, int64_t rows) {
  for (size_t i = 1; i < spec.shape.size(); ++i) rows *= spec.shape[i];
  return rows;
}

std::vector<StartedCall::Piece> PiecesOf(const CompiledCall& call,
                                         const Started& started) {
  std::vector<StartedCall::Piece> pieces;
  for (const bool is_read : {true, false}) {
    const auto& buffers = is_read ? started.tensors : started.outputs;
    for (size_t i = 0; i < buffers.size(); ++i) {
      const size_t bytes = static_cast<size_t>(buffers[i].count) *
                           SizeOf(call.request.tensors[i].dtype);
      pieces.push_back({buffers[i].data, bytes, is_read});
    }
  }
  return pieces;
}

// The fields that a collective adds to the entry.
class EntryMaker {
 public:
  EntryMaker(const CompiledCall& call, const Started& started,
             const Membership& membership, std::shared_ptr<StartedCall> pending,
             Entry* entry)
      : call_(call),
        started_(started),
        membership_(membership),
        pending_(std::move(pending)),
        entry_(entry) {}

  Status Fill() {
    const Request& request = call_.request;
    if (Has(request.kind, kHasRoot)) {
      TF_HVD_RETURN_IF_ERROR(CheckRoot(request.root, call_.set, membership_));
    }
    switch (YieldOf(request.kind)) {
      case Yield::kNothing:
        break;
      case Yield::kWhole:
        return FillInPlace();
      case Yield::kOwnRows:
        return FillScattered();
      case Yield::kAllRows:
        return FillGathered();
      case Yield::kSentRows:
        return FillExchanged();
    }
    return Status::Ok();
  }

 private:
  Status FillInPlace() {
    for (const Buffer& tensor : started_.tensors) {
      entry_->tensors.push_back({tensor.data, tensor.data, tensor.count});
    }
    return Status::Ok();
  }

  Status FillScattered() {
    for (size_t i = 0; i < started_.tensors.size(); ++i) {
      const TensorSpec& spec = call_.request.tensors[i];
      const Buffer& tensor = started_.tensors[i];
      const Buffer& output = started_.outputs[i];
      const int64_t rows =
          ScatteredRows(spec.shape[0], membership_.ranks, membership_.place);
      if (CountIn(spec, rows) != output.count) {
        return OtherRanks(membership_);
      }
      entry_->tensors.push_back({tensor.data, output.data, tensor.count});
    }
    return Status::Ok();
  }

  Status FillGathered() {
    const auto ranks = static_cast<int64_t>(membership_.ranks);
    for (size_t i = 0; i < started_.tensors.size(); ++i) {
      const Buffer& tensor = started_.tensors[i];
      if (started_.outputs[i].count != tensor.count * ranks) {
        return OtherRanks(membership_);
      }
      entry_->tensors.push_back({tensor.data, nullptr, tensor.count});
      entry_->rows.push_back(call_.request.tensors[i].shape[0]);
    }
    GiveOutputs();
    return Status::Ok();
  }

  Status FillExchanged() {
    const Buffer& tensor = started_.tensors[0];
    entry_->tensors.push_back({tensor.data, nullptr, tensor.count});
    GiveOutputs();
    return EvenSplits(call_.request.tensors[0].shape[0], membership_.ranks,
                      &entry_->rows);
  }

  // All ranks have the same rows (Request::compiled): the results fit.
  void GiveOutputs() {
    entry_->allocate = [pending = pending_, outputs = started_.outputs](
                           size_t tensor, const std::vector<int64_t>&,
                           void** output) {
      *output = pending->Where(outputs[tensor].data);
      return Status::Ok();
    };
  }

  const CompiledCall& call_;
  const Started& started_;
  const Membership& membership_;
  const std::shared_ptr<StartedCall> pending_;
  Entry* const entry_;
};

class Calls final : public CompiledCalls {
 public:
  explicit Calls(RuntimeFinder find_runtime)
      : find_runtime_(std::move(find_runtime)) {}

  void NoteCompilation(const std::string& step) override {
    std::shared_ptr<Runtime> runtime;
    if (find_runtime_(&runtime).ok()) runtime->NoteCompilation(step);
  }

  void Start(const Started& started) override {
    const auto pending = std::make_shared<StartedCall>();
    {
      const MutexLock lock(&mutex_);
      pending_[started.ticket] = pending;
    }
    const Status status = Submit(started, pending);
    if (!status.ok()) pending->Complete(status);
  }

  void End(const void* ticket, Ended ended) override {
    std::shared_ptr<StartedCall> pending;
    const Status status = Take(ticket, &pending);
    if (!status.ok()) return ended(status);
    const Ended tell = [open = open_,
                        ended = std::move(ended)](const Status& how) {
      if (!how.ok()) open->Leave(how);
      ended(how);
    };
    const std::optional<Status> known =
        pending->Await([threads = threads_, tell](const Status& how) {
          threads->Run([tell, how] { tell(how); });
        });
    if (known.has_value()) tell(*known);
  }

  Status EndOn(void* stream, const void* ticket) override {
    return LeaveIfFailed(WaitOn(stream, ticket));
  }

  Status Number(std::string_view which, int32_t set, void* stream,
                int32_t* value) override {
    return LeaveIfFailed(Tell(which, set, stream, value));
  }

  Status Verdict(std::string_view verdict, const bool* wrong, size_t count,
                 bool* passed) override {
    return LeaveIfFailed(Judge(verdict, wrong, count, passed));
  }

  int64_t Fingerprint(const void* data, size_t bytes) override {
    return FingerprintOf(data, bytes);
  }

  Status Ranks(int32_t set, int64_t* ranks, int64_t* place) override {
    std::shared_ptr<Runtime> runtime;
    TF_HVD_RETURN_IF_ERROR(find_runtime_(&runtime));
    Membership membership;
    TF_HVD_RETURN_IF_ERROR(FindSet(*runtime, set, &membership));
    *ranks = static_cast<int64_t>(membership.ranks);
    *place = static_cast<int64_t>(membership.place);
    return Status::Ok();
  }

 private:
  Status LeaveIfFailed(const Status& status) {
    if (!status.ok()) open_->Leave(status);
    return status;
  }

  Status WaitOn(void* stream, const void* ticket) {
    std::shared_ptr<StartedCall> pending;
    TF_HVD_RETURN_IF_ERROR(Take(ticket, &pending));
    std::shared_ptr<GpuEvent> event;
    TF_HVD_RETURN_IF_ERROR(pending->AwaitOnDevice(&event));
    if (event == nullptr) return Status::Ok();
    return event->device()->Wait(static_cast<CudaStream>(stream), *event);
  }

  Status Tell(std::string_view which, int32_t set, void* stream,
              int32_t* value) const {
    std::shared_ptr<Runtime> runtime;
    TF_HVD_RETURN_IF_ERROR(find_runtime_(&runtime));
    if (stream == nullptr) return ReadNumber(*runtime, which, set, value);
    int32_t number = 0;
    TF_HVD_RETURN_IF_ERROR(ReadNumber(*runtime, which, set, &number));
    std::shared_ptr<GpuDevice> device;
    TF_HVD_RETURN_IF_ERROR(FindDevice(*runtime, stream, kWhere, &device));
    return device->Store(static_cast<CudaStream>(stream), value, number);
  }

  Status Judge(std::string_view verdict, const bool* wrong, size_t count,
               bool* passed) const {
    std::shared_ptr<Runtime> runtime;
    TF_HVD_RETURN_IF_ERROR(find_runtime_(&runtime));
    tf_hvd::Verdict decoded;
    TF_HVD_RETURN_IF_ERROR(DecodeVerdict(verdict, &decoded));
    return tf_hvd::Tell(*runtime, decoded, wrong, count, passed);
  }

  Status Take(const void* ticket, std::shared_ptr<StartedCall>* pending) {
    const MutexLock lock(&mutex_);
    const auto found = pending_.find(ticket);
    if (found == pending_.end()) {
      return Internal(
          "bug in tf_hvd: XLA has moved the memory of a collective in "
          "progress");
    }
    *pending = std::move(found->second);
    pending_.erase(found);
    return Status::Ok();
  }

  const Known& Find(std::string_view text) {
    const MutexLock lock(&mutex_);
    if (const auto found = known_.find(text); found != known_.end()) {
      return *found->second;
    }
    auto known = std::make_unique<Known>(text);
    const Known& result = *known;
    known_.emplace(result.text, std::move(known));
    return result;
  }

  // Returns only errors that cannot be reported to any other rank.
  Status Submit(const Started& started,
                const std::shared_ptr<StartedCall>& pending) {
    const Known& known = Find(started.call);
    TF_HVD_RETURN_IF_ERROR(known.status);
    const CompiledCall& call = known.call;
    Entry entry;
    entry.name = call.name;
    entry.source = call.source;
    if (started.iteration >= 0) {
      entry.name += ";" + std::to_string(started.iteration);
    }
    const std::string title = TitleOf(call.request.kind, entry.name);
    std::shared_ptr<Runtime> runtime;
    TF_HVD_RETURN_IF_ERROR(find_runtime_(&runtime));
    Membership membership;
    const Status found = FindSet(*runtime, call.set, &membership);
    if (!found.ok()) return found.WithContext(title);
    entry.set = call.set;
    entry.request = call.request;
    entry.step = started.step;
    entry.sources = TheSources()->Find(started.sources);
    Status wrong = known.valid;
    if (wrong.ok()) {
      pending->Use(PiecesOf(call, started));
      wrong = EntryMaker(call, started, membership, pending, &entry).Fill();
    }
    if (wrong.ok() && call.request.device == DeviceKind::kGpu) {
      wrong = Place(*runtime, started.stream, title, pending, &entry);
    }
    entry.local_error = wrong.WithContext(title);
    entry.listener = pending;
    entry.caller = pending->caller();
    open_->Add(pending);
    entry.keepalive = std::shared_ptr<void>(
        pending.get(),
        [open = open_, pending](void*) { open->Release(pending); });
    entry.done = Completion([pending](const Status& status, int32_t) {
      pending->Complete(status);
    });
    runtime->Submit(std::move(entry));
    return Status::Ok();
  }

  static Status Place(const Runtime& runtime, void* stream,
                      const std::string& title,
                      const std::shared_ptr<StartedCall>& pending,
                      Entry* entry) {
    TF_HVD_RETURN_IF_ERROR(PlaceOnGpu(runtime, stream, kWhere, entry));
    const Topology& topology = runtime.topology();
    pending->UseOn(static_cast<CudaStream>(stream), entry->memory.ready,
                   topology.RankText(topology.rank), title);
    if (entry->allocated == nullptr) return Status::Ok();
    // The memory of the results is allocated from the start.
    entry->allocated = [pending](std::shared_ptr<GpuEvent>* ready) {
      *ready = pending->Ready();
      return Status::Ok();
    };
    return Status::Ok();
  }

  const RuntimeFinder find_runtime_;
  // Requests may be released after this object is gone.
  const std::shared_ptr<OpenCalls> open_ = std::make_shared<OpenCalls>();
  const std::shared_ptr<StepThreads> threads_ = std::make_shared<StepThreads>();
  Mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<StartedCall>> pending_
      GUARDED_BY(mutex_);
  // By encoded text. Entries are never removed: a program that has the call may
  // run again.
  std::unordered_map<std::string_view, std::unique_ptr<Known>> known_
      GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<CompiledCalls> MakeCompiledCalls(RuntimeFinder find_runtime) {
  return std::make_unique<Calls>(std::move(find_runtime));
}

CompiledCalls* DefaultCompiledCalls() {
  static auto* const calls = MakeCompiledCalls(FindDefaultRuntime).release();
  return calls;
}

}  // namespace tf_hvd
