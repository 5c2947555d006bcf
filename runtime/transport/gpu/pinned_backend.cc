#include "runtime/transport/gpu/pinned_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "runtime/contract/rank_group.h"

namespace tf_hvd {
namespace {

// In pinned memory each tensor starts at a cache line.
constexpr size_t kAlign = 64;

// The minimum allocation.
constexpr size_t kBlockBytes = size_t{1} << 20;

// A tensor, or a part of one, and its place in pinned memory.
struct Transfer {
  void* on_device = nullptr;
  size_t offset = 0;
  size_t bytes = 0;
};

// The same operation on host memory.
OperationSpec OnHost(const OperationSpec& spec) {
  OperationSpec host = spec;
  host.memory = Memory();
  host.stored.reset();  // casts are done on the device
  return host;
}

// The copies to make. Pure: pinned memory is an offset.
class PinnedLayout {
 public:
  PinnedLayout(const OperationSpec& spec, size_t me) : spec_(spec) {
    const size_t element = Reduces(spec.kind) ? SizeOf(spec.reduce.dtype) : 1;
    if (YieldOf(spec.kind) == Yield::kSentRows) {
      Add(spec.input, spec.output, Sum(spec.send), Sum(spec.receive));
      return;
    }
    const size_t each = spec.spans.size() / spec.ranks->size();
    for (size_t i = 0; i < spec.spans.size(); ++i) {
      const Span& span = spec.spans[i];
      const bool mine = !ListsRanks(spec.kind) || i / each == me;
      // Data that the operation does not read is not copied.
      const bool reads = Gives(spec, me) && (mine || Reduces(spec.kind));
      const bool writes = mine || YieldOf(spec.kind) == Yield::kAllRows;
      const auto bytes = static_cast<size_t>(span.count) * element;
      Add(reads ? span.input : nullptr, writes ? span.output : nullptr, bytes,
          bytes);
    }
  }

  size_t bytes() const { return bytes_; }
  const std::vector<Transfer>& inputs() const { return inputs_; }
  const std::vector<Transfer>& outputs() const { return outputs_; }

  // The operation, with its tensors at `memory`.
  OperationSpec At(char* memory) const {
    OperationSpec host = OnHost(spec_);
    const auto at = [memory](const void* was, const Place& place) {
      return was == nullptr || !place.used ? nullptr : memory + place.offset;
    };
    if (YieldOf(spec_.kind) == Yield::kSentRows) {
      host.input = at(spec_.input, places_[0].input);
      host.output = at(spec_.output, places_[0].output);
      return host;
    }
    for (size_t i = 0; i < host.spans.size(); ++i) {
      host.spans[i].input = at(spec_.spans[i].input, places_[i].input);
      host.spans[i].output = at(spec_.spans[i].output, places_[i].output);
    }
    return host;
  }

 private:
  struct Place {
    bool used = false;
    size_t offset = 0;
  };
  struct Places {
    Place input;
    Place output;
  };

  static size_t Sum(const std::vector<int64_t>& bytes) {
    return static_cast<size_t>(
        std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  }

  size_t Reserve(size_t bytes) {
    const size_t offset = bytes_;
    bytes_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return offset;
  }

  void Add(const void* input, void* output, size_t input_bytes,
           size_t output_bytes) {
    Places places;
    if (input != nullptr) {
      places.input = {true, Reserve(input_bytes)};
      inputs_.push_back(
          {const_cast<void*>(input), places.input.offset, input_bytes});
    }
    if (output != nullptr) {
      places.output =
          output == input ? places.input : Place{true, Reserve(output_bytes)};
      outputs_.push_back({output, places.output.offset, output_bytes});
    }
    places_.push_back(places);
  }

  const OperationSpec& spec_;
  size_t bytes_ = 0;
  std::vector<Places> places_;  // for each span
  std::vector<Transfer> inputs_;
  std::vector<Transfer> outputs_;
};

// Tensors that are cast on the device, before the copy to pinned memory and
// after the copy back: the copied data is at `on_device` instead.
struct DeviceCast {
  GpuMove narrow;
  GpuMove widen;
  std::vector<Transfer> inputs;
  std::vector<Transfer> outputs;
};

DeviceCast CastAt(char* on_device, DType dtype, const PinnedLayout& layout) {
  MoveBuilder narrow({dtype, 1.0, 1.0, Scaling::Cast::kNarrow});
  MoveBuilder widen({dtype, 1.0, 1.0, Scaling::Cast::kWiden});
  DeviceCast cast;
  for (const Transfer& input : layout.inputs()) {
    char* const at = on_device + input.offset;
    narrow.Add(input.on_device, at, static_cast<int64_t>(input.bytes));
    cast.inputs.push_back({at, input.offset, input.bytes});
  }
  for (const Transfer& output : layout.outputs()) {
    char* const at = on_device + output.offset;
    widen.Add(at, output.on_device, static_cast<int64_t>(output.bytes));
    cast.outputs.push_back({at, output.offset, output.bytes});
  }
  cast.narrow = narrow.Build();
  cast.widen = widen.Build();
  return cast;
}

}  // namespace

class PinnedOperation final : public Operation {
 public:
  PinnedOperation(PinnedBackend* backend, std::shared_ptr<GpuDevice> device,
                  CudaStream stream)
      : backend_(backend), device_(std::move(device)), stream_(stream) {}
  ~PinnedOperation() override {
    backend_->GiveBack(std::move(block_));
    backend_->GiveBack(std::move(casts_));
  }

  // Copies to pinned memory, once `spec.memory.ready` has fired, and returns
  // the operation to execute on the copies.
  Status Begin(const OperationSpec& spec, size_t me, OperationSpec* host) {
    const PinnedLayout layout(spec, me);
    std::vector<Transfer> inputs = layout.inputs();
    outputs_ = layout.outputs();
    size_t rows = 0;
    if (StoredType(spec) != spec.reduce.dtype) {
      TF_HVD_RETURN_IF_ERROR(backend_->Take(device_.get(), MemoryKind::kDevice,
                                            layout.bytes(), &casts_));
      DeviceCast cast = CastAt(casts_.memory.get(), spec.reduce.dtype, layout);
      narrow_ = std::move(cast.narrow);
      widen_ = std::move(cast.widen);
      inputs = std::move(cast.inputs);
      outputs_ = std::move(cast.outputs);
      rows = narrow_.row_bytes() + widen_.row_bytes();
    }
    rows_at_ = layout.bytes();
    TF_HVD_RETURN_IF_ERROR(backend_->Take(device_.get(), MemoryKind::kPinned,
                                          rows_at_ + rows, &block_));
    if (spec.memory.ready != nullptr) {
      TF_HVD_RETURN_IF_ERROR(device_->Wait(stream_, *spec.memory.ready));
    }
    TF_HVD_RETURN_IF_ERROR(Launch(narrow_));
    for (const Transfer& input : inputs) {
      TF_HVD_RETURN_IF_ERROR(device_->Copy(stream_,
                                           block_.memory.get() + input.offset,
                                           input.on_device, input.bytes));
    }
    *host = layout.At(block_.memory.get());
    return device_->Record(stream_, &copied_);
  }

  std::unique_ptr<Operation>* host() { return &host_; }

  Status Progress(int64_t budget_ns, Poll* poll) override {
    if (copied_ != nullptr) {
      bool fired = false;
      TF_HVD_RETURN_IF_ERROR(device_->HasFired(*copied_, &fired));
      if (!fired) return Status::Ok();
      copied_.reset();
      poll->moved = true;
      poll->done = host_ == nullptr;
      if (poll->done) return Status::Ok();
    }
    TF_HVD_RETURN_IF_ERROR(host_->Progress(budget_ns, poll));
    if (!poll->done) return Status::Ok();
    poll->done = false;
    host_.reset();
    for (const Transfer& output : outputs_) {
      TF_HVD_RETURN_IF_ERROR(device_->Copy(stream_, output.on_device,
                                           block_.memory.get() + output.offset,
                                           output.bytes));
    }
    TF_HVD_RETURN_IF_ERROR(Launch(widen_));
    return device_->Record(stream_, &copied_);
  }

  // Copies already on the stream will be made.
  bool Abandon() override {
    const bool let_go = host_ == nullptr || host_->Abandon();
    return let_go && copied_ == nullptr;
  }

 private:
  // The launch's rows are in pinned memory, after the tensors.
  Status Launch(const GpuMove& move) {
    if (move.empty()) return Status::Ok();
    char* const rows = block_.memory.get() + rows_at_;
    rows_at_ += move.row_bytes();
    return device_->Launch(stream_, move, rows);
  }

  PinnedBackend* const backend_;
  const std::shared_ptr<GpuDevice> device_;
  const CudaStream stream_;
  PinnedBackend::Block block_;
  PinnedBackend::Block casts_;  // tensors as they are sent, on the device
  size_t rows_at_ = 0;
  GpuMove narrow_;
  GpuMove widen_;
  std::vector<Transfer> outputs_;
  std::unique_ptr<Operation> host_;   // until it has ended
  std::shared_ptr<GpuEvent> copied_;  // null: no copies in progress
};

bool PinnedBackend::Serves(const OperationSpec& spec) const {
  return spec.memory.kind == MemoryKind::kDevice && host_->Serves(OnHost(spec));
}

Status PinnedBackend::Make(OperationSpec spec,
                           std::unique_ptr<Operation>* operation) {
  size_t me = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(spec, rank_, &me));
  if (on_use_ != nullptr && spec.memory.device >= 0) on_use_();
  std::shared_ptr<GpuDevice> device;
  TF_HVD_RETURN_IF_ERROR(
      spec.memory.device < 0
          ? devices_->Any(&device)
          : devices_->OfOrdinal(spec.memory.device, &device));
  CudaStream stream = nullptr;
  TF_HVD_RETURN_IF_ERROR(StreamOf(device, &stream));
  auto made =
      std::make_unique<PinnedOperation>(this, std::move(device), stream);
  OperationSpec host;
  TF_HVD_RETURN_IF_ERROR(made->Begin(spec, me, &host));
  TF_HVD_RETURN_IF_ERROR(host_->Make(std::move(host), made->host()));
  *operation = std::move(made);
  return Status::Ok();
}

Status PinnedBackend::StreamOf(const std::shared_ptr<GpuDevice>& device,
                               CudaStream* stream) {
  CudaStream& found = streams_[device->ordinal()];
  if (found == nullptr) TF_HVD_RETURN_IF_ERROR(device->NewStream(&found));
  *stream = found;
  return Status::Ok();
}

Status PinnedBackend::Fill(GpuDevice* device, MemoryKind kind) {
  if (!filled_.insert({device->ordinal(), kind}).second) return Status::Ok();
  for (size_t i = 0; i < window(); ++i) {
    Block block = {nullptr, kBlockBytes, kind, device->ordinal()};
    TF_HVD_RETURN_IF_ERROR(device->Allocate(kind, block.bytes, &block.memory));
    GiveBack(std::move(block));
  }
  return Status::Ok();
}

Status PinnedBackend::Take(GpuDevice* device, MemoryKind kind, size_t bytes,
                           Block* block) {
  TF_HVD_RETURN_IF_ERROR(Fill(device, kind));
  const auto begin = std::partition(
      free_.begin(), free_.end(), [kind, device](const Block& free) {
        return free.kind != kind || free.device != device->ordinal();
      });
  const auto found = std::find_if(
      begin, free_.end(), [bytes](const Block& b) { return b.bytes >= bytes; });
  if (found != free_.end()) {
    *block = std::move(*found);
    free_.erase(found);
    return Status::Ok();
  }
  // No block is freed to make room while a job runs: that may wait for the
  // device. Sizes are powers of two, so the memory kept is not much more than
  // needed.
  size_t larger = kBlockBytes;
  while (larger < bytes) larger *= 2;
  *block = {nullptr, larger, kind, device->ordinal()};
  return device->Allocate(kind, block->bytes, &block->memory);
}

void PinnedBackend::GiveBack(Block block) {
  if (block.memory != nullptr) free_.push_back(std::move(block));
}

}  // namespace tf_hvd
