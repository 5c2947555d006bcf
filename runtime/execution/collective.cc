#include "runtime/execution/collective.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace tf_hvd {
namespace {

// Bytes of one row: the product of all dimensions but the first.
int64_t RowBytes(const TensorSpec& tensor) {
  auto bytes = static_cast<int64_t>(SizeOf(tensor.dtype));
  for (size_t i = 1; i < tensor.shape.size(); ++i) bytes *= tensor.shape[i];
  return bytes;
}

ReduceOptions OptionsOf(const Request& request, DType dtype) {
  return {dtype, request.reduce_op, request.prescale, request.postscale, 1.0};
}

}  // namespace

Collective::Collective(std::vector<Response> responses)
    : responses_(std::move(responses)) {
  exchanging_ = first().error.empty() && RowsDiffer(first().request->kind);
}

void Collective::Enqueued(const std::shared_ptr<GpuEvent>& event) {
  if (!last_given()) return;
  for (Response& response : responses_) {
    if (!response.own.has_value()) continue;
    if (response.own->listener == nullptr) continue;
    std::exchange(response.own->listener, nullptr)->Enqueued(event);
  }
}

std::string Collective::What() const {
  return std::string(NameOf(first().request->kind)) + " '" +
         first().key.second + "'";
}

Status Collective::Next(OperationSpec* spec, bool* some) {
  if (!planned_) {
    planned_ = true;
    TF_HVD_RETURN_IF_ERROR(Plan());
  } else if (exchanging_) {
    exchanging_ = false;
    TF_HVD_RETURN_IF_ERROR(YieldOf(first().request->kind) == Yield::kAllRows
                               ? PlanAllRows()
                               : PlanSentRows());
  }
  *some = !specs_.empty();
  if (!*some) return Status::Ok();
  *spec = std::move(specs_.front());
  specs_.pop_front();
  return Status::Ok();
}

OperationSpec Collective::Spec() const {
  OperationSpec spec;
  spec.kind = first().request->kind;
  spec.ranks = first().ranks;
  spec.set = first().key.first;
  spec.memory = MemoryOfTensors();
  if (first().own.has_value()) spec.stored = first().own->stored;
  if (Has(spec.kind, kHasRoot)) {
    const std::vector<int>& ranks = *spec.ranks;
    const auto root =
        std::lower_bound(ranks.begin(), ranks.end(), first().request->root);
    spec.root = static_cast<size_t>(root - ranks.begin());
  }
  return spec;
}

Memory Collective::MemoryOfTensors() const {
  if (first().own.has_value()) return first().own->memory;
  Memory memory;
  if (OnDevice()) memory.kind = MemoryKind::kDevice;
  return memory;
}

Status Collective::Plan() {
  if (!first().error.empty()) return Status::Ok();
  const OpKind kind = first().request->kind;
  if (!Has(kind, kRunsAfterJoin) && !first().own.has_value()) {
    return Internal("bug in tf_hvd: this rank's tensor is missing");
  }
  switch (YieldOf(kind)) {
    case Yield::kNothing:  // complete as soon as it is ordered
      break;
    case Yield::kWhole:
      if (Reduces(kind)) {
        PlanReduced();
      } else {
        PlanRoots();
      }
      break;
    case Yield::kOwnRows:
      PlanOwnRows();
      break;
    case Yield::kAllRows:
    case Yield::kSentRows:
      return PlanExchange();
  }
  return Status::Ok();
}

// One operation for each type: only a single group has more than one.
void Collective::PlanReduced() {
  std::map<DType, std::vector<Span>> spans;
  for (const Response& response : responses_) {
    for (size_t i = 0; i < response.request->tensors.size(); ++i) {
      Span span;  // joined: takes part with zeros
      if (response.own.has_value()) span = response.own->tensors[i];
      span.count = ElementCount(response.request->tensors[i].shape);
      spans[response.request->tensors[i].dtype].push_back(span);
    }
  }
  for (auto& [dtype, of_type] : spans) {
    OperationSpec spec = Spec();
    spec.reduce = OptionsOf(*first().request, dtype);
    spec.spans = std::move(of_type);
    specs_.push_back(std::move(spec));
  }
}

void Collective::PlanRoots() {
  const Response& response = first();
  OperationSpec spec = Spec();
  for (size_t t = 0; t < response.request->tensors.size(); ++t) {
    Span tensor = response.own->tensors[t];
    tensor.count *=
        static_cast<int64_t>(SizeOf(response.request->tensors[t].dtype));
    spec.spans.push_back(tensor);
  }
  specs_.push_back(std::move(spec));
}

void Collective::PlanOwnRows() {
  const Response& response = first();
  const auto& tensors = response.request->tensors;
  std::map<DType, std::vector<size_t>> of_types;
  for (size_t t = 0; t < tensors.size(); ++t) {
    of_types[tensors[t].dtype].push_back(t);
  }
  for (const auto& [dtype, of_type] : of_types) {
    OperationSpec spec = Spec();
    spec.reduce = OptionsOf(*response.request, dtype);
    const auto stored = static_cast<int64_t>(SizeOf(StoredType(spec)));
    // Bytes of each tensor for the ranks before.
    std::vector<int64_t> before(tensors.size());
    for (size_t place = 0; place < response.ranks->size(); ++place) {
      for (const size_t t : of_type) {
        const Span& own = response.own->tensors[t];
        const int64_t rows =
            ScatteredRows(tensors[t].shape[0], response.ranks->size(), place);
        const int64_t count =
            rows * RowBytes(tensors[t]) / static_cast<int64_t>(SizeOf(dtype));
        spec.spans.push_back({static_cast<const char*>(own.input) + before[t],
                              own.output, count});
        before[t] += count * stored;
      }
    }
    specs_.push_back(std::move(spec));
  }
}

// For the rows of all ranks: sends each rank's first dimensions, of all
// tensors, to all ranks. For sent rows: each rank sends each other rank its
// number of rows.
Status Collective::PlanExchange() {
  const Response& response = first();
  const size_t ranks = response.ranks->size();
  const bool gathers = YieldOf(response.request->kind) == Yield::kAllRows;
  const size_t each = gathers ? response.request->tensors.size() : ranks;
  rows_.assign(each, 0);  // for a rank that has joined
  if (response.own.has_value()) rows_ = response.own->rows;
  if (rows_.size() != each) return Internal("bug in tf_hvd: rows are missing");
  constexpr auto kNumber = static_cast<int64_t>(sizeof(int64_t));
  OperationSpec spec = Spec();
  spec.memory = {};  // numbers of rows are in host memory
  if (gathers) {
    all_rows_.resize(ranks * each);
    for (size_t place = 0; place < ranks; ++place) {
      spec.spans.push_back({rows_.data(), &all_rows_[place * each],
                            static_cast<int64_t>(each) * kNumber});
    }
  } else {
    all_rows_.resize(ranks);
    spec.send.assign(ranks, kNumber);
    spec.receive.assign(ranks, kNumber);
    spec.input = rows_.data();
    spec.output = all_rows_.data();
  }
  specs_.push_back(std::move(spec));
  return Status::Ok();
}

std::vector<int64_t> Collective::RowsFrom(size_t tensor) const {
  const size_t tensors = rows_.size();
  std::vector<int64_t> rows;
  for (size_t i = tensor; i < all_rows_.size(); i += tensors) {
    rows.push_back(all_rows_[i]);
  }
  return rows;
}

// A rank that has joined has no rows. It receives the others' only because
// every rank passes them on.
Status Collective::PlanAllRows() {
  Response& response = responses_.front();
  const size_t tensors = response.request->tensors.size();
  OperationSpec spec = Spec();
  spec.spans.resize(all_rows_.size());
  for (size_t t = 0; t < tensors; ++t) {
    const std::vector<int64_t> rows = RowsFrom(t);
    const int64_t row_bytes = RowBytes(response.request->tensors[t]);
    const void* input = nullptr;
    void* output = nullptr;
    if (response.own.has_value()) {
      Span& own = response.own->tensors[t];
      TF_HVD_RETURN_IF_ERROR(response.own->allocate(t, rows, &own.output));
      input = own.input;
      output = own.output;
    } else if (!OnDevice()) {
      const int64_t bytes =
          std::accumulate(rows.begin(), rows.end(), int64_t{0}) * row_bytes;
      unused_.emplace_back(new char[static_cast<size_t>(bytes) + 1],
                           std::default_delete<char[]>());
      output = unused_.back().get();
    }
    auto* at = static_cast<char*>(output);
    for (size_t place = 0; place < rows.size(); ++place) {
      const int64_t bytes = rows[place] * row_bytes;
      spec.spans[place * tensors + t] = {input, at, bytes};
      if (at != nullptr) at += bytes;
    }
  }
  TF_HVD_RETURN_IF_ERROR(SeeAllocated(&spec));
  specs_.push_back(std::move(spec));
  return Status::Ok();
}

Status Collective::PlanSentRows() {
  Response& response = responses_.front();
  const int64_t row_bytes = RowBytes(response.request->tensors[0]);
  OperationSpec spec = Spec();
  for (size_t i = 0; i < all_rows_.size(); ++i) {
    spec.send.push_back(rows_[i] * row_bytes);
    spec.receive.push_back(all_rows_[i] * row_bytes);
  }
  Span& own = response.own->tensors[0];
  TF_HVD_RETURN_IF_ERROR(response.own->allocate(0, all_rows_, &own.output));
  spec.input = own.input;
  spec.output = own.output;
  TF_HVD_RETURN_IF_ERROR(SeeAllocated(&spec));
  specs_.push_back(std::move(spec));
  return Status::Ok();
}

// The previous content of a device's new memory may still be in use.
Status Collective::SeeAllocated(OperationSpec* spec) const {
  const Response& response = first();
  if (!response.own.has_value() || response.own->allocated == nullptr) {
    return Status::Ok();
  }
  return response.own->allocated(&spec->memory.ready);
}

}  // namespace tf_hvd
