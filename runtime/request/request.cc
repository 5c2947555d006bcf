#include "runtime/request/request.h"

#include <cstdio>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/base/wire.h"

namespace tf_hvd {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

std::string Scales(const Request& request) {
  return "prescale " + Number(request.prescale) + " and postscale " +
         Number(request.postscale);
}

// One side's value for a check, and the rule that it broke.
struct Difference {
  std::string a;
  std::string b;
  const char* rule;
};

bool IsGroup(const Request& a, const Request& b) {
  return a.tensors.size() > 1 || b.tensors.size() > 1;
}

// The first tensor that both have and for which `differ` holds.
template <typename Differ>
std::optional<size_t> FirstTensor(const Request& a, const Request& b,
                                  const Differ& differ) {
  for (size_t i = 0; i < a.tensors.size() && i < b.tensors.size(); ++i) {
    if (differ(a.tensors[i], b.tensors[i])) return i;
  }
  return std::nullopt;
}

// "float32[3] as tensor 1 ('w')"; of a call with one tensor only the type.
std::string TensorText(const TensorSpec& tensor, size_t index, bool group) {
  std::string text = Describe(tensor.dtype, tensor.shape);
  if (!group) return text;
  text += " as tensor " + std::to_string(index);
  return tensor.name.empty() ? text : text + " ('" + tensor.name + "')";
}

Difference TensorTexts(const Request& a, const Request& b, size_t index,
                       const char* rule) {
  const bool group = IsGroup(a, b);
  return {TensorText(a.tensors[index], index, group),
          TensorText(b.tensors[index], index, group), rule};
}

std::string NameText(const TensorSpec& tensor, size_t index) {
  const std::string place = "tensor " + std::to_string(index);
  return tensor.name.empty() ? place + " without a name"
                             : "'" + tensor.name + "' as " + place;
}

// Which tensors a group has, by their names; no rule if they are the same.
Difference MemberDifference(const Request& a, const Request& b) {
  const auto other_name =
      FirstTensor(a, b, [](const TensorSpec& x, const TensorSpec& y) {
        return x.name != y.name;
      });
  if (!other_name.has_value()) return {"", "", nullptr};
  return {NameText(a.tensors[*other_name], *other_name),
          NameText(b.tensors[*other_name], *other_name),
          "a group must have the same tensors in the same order on all ranks"};
}

std::string CountText(const Request& request) {
  const size_t count = request.tensors.size();
  return std::to_string(count) + (count == 1 ? " tensor" : " tensors");
}

const char* ShapeRule(OpKind kind) {
  switch (kind) {
    case OpKind::kAllgather:
    case OpKind::kAlltoall:
      return "all dimensions but the first must be equal on all ranks";
    default:
      return "the shapes must be equal on all ranks";
  }
}

Difference TensorDifference(const Request& a, const Request& b) {
  const auto other_type =
      FirstTensor(a, b, [](const TensorSpec& x, const TensorSpec& y) {
        return x.dtype != y.dtype;
      });
  if (other_type.has_value()) {
    return TensorTexts(a, b, *other_type,
                       "the data types must be equal on all ranks");
  }
  if (a.tensors.size() != b.tensors.size()) {
    return {CountText(a), CountText(b),
            "a group must have the same tensors on all ranks"};
  }
  const auto other_shape =
      FirstTensor(a, b, [](const TensorSpec& x, const TensorSpec& y) {
        return x.shape != y.shape;
      });
  if (!other_shape.has_value()) return {"", "", nullptr};
  return TensorTexts(a, b, *other_shape, ShapeRule(a.kind));
}

// How the caller says that the tensor stands for something that is not dense.
constexpr char kSlices[] = "IndexedSlices";

Difference CompressionDifference(const Request& a, const Request& b) {
  if (a.compression == b.compression) return {"", "", nullptr};
  if (a.compression == kSlices || b.compression == kSlices) {
    const std::string dense = "a dense tensor";
    return {a.compression == kSlices ? kSlices : dense,
            b.compression == kSlices ? kSlices : dense,
            "it must be the one or the other on all ranks: convert it with "
            "tf.convert_to_tensor, or pass sparse_as_dense=True"};
  }
  const std::string none = "no compression";
  return {a.compression.empty() ? none : a.compression,
          b.compression.empty() ? none : b.compression,
          "the compression must be equal on all ranks"};
}

std::string RanksText(const Request& request) {
  std::string text = "ranks";
  for (const int32_t rank : request.ranks) {
    text += (text.back() == 's' ? " " : ", ") + std::to_string(rank);
  }
  return text;
}

// "process sets [0, 1], [2]": what a rank gave to init.
std::string SetsText(const Request& request) {
  std::string text;
  std::string set;
  for (const int32_t rank : request.ranks) {
    if (rank == kSetEnd) {
      text += (text.empty() ? "process sets " : ", ") + ("[" + set + "]");
      set.clear();
    } else {
      set += set.empty() ? "" : ", ";
      set += rank == kCommunicatorSet ? "a communicator's ranks"
                                      : std::to_string(rank);
    }
  }
  return text.empty() ? "no process sets" : text;
}

// Add and remove: what differs is which set is meant.
Difference SetDifference(const Request& a, const Request& b) {
  const char* rule = "process sets must be equal on all ranks";
  if (a.kind == OpKind::kBarrier) return {SetsText(a), SetsText(b), rule};
  if (a.kind == OpKind::kRemoveSet) {
    return {"process set " + std::to_string(a.removed_set),
            "process set " + std::to_string(b.removed_set), rule};
  }
  return {RanksText(a), RanksText(b), rule};
}

// The checks in their documented order; the first that fails is told.
Difference FirstDifference(const Request& a, const Request& b) {
  if (a.kind != b.kind) {
    return {NameOf(a.kind), NameOf(b.kind),
            "the operations must be equal on all ranks; if two are meant, give "
            "them different names"};
  }
  // Before the data types, which differ because of it.
  const Difference compression = CompressionDifference(a, b);
  if (compression.rule != nullptr) return compression;
  // Before types and shapes, which are then those of different tensors.
  const Difference members = MemberDifference(a, b);
  if (members.rule != nullptr) return members;
  const Difference tensors = TensorDifference(a, b);
  if (tensors.rule != nullptr) return tensors;
  if (a.prescale != b.prescale || a.postscale != b.postscale) {
    return {Scales(a), Scales(b), "the scales must be equal on all ranks"};
  }
  if (a.reduce_op != b.reduce_op) {
    return {NameOf(a.reduce_op), NameOf(b.reduce_op),
            "the reduce operations must be equal on all ranks"};
  }
  if (a.root != b.root) {
    return {"root rank " + std::to_string(a.root),
            "root rank " + std::to_string(b.root),
            "the root must be equal on all ranks"};
  }
  if (a.device != b.device) {
    return {
        std::string("a tensor on ") + NameOf(a.device),
        std::string("a tensor on ") + NameOf(b.device),
        "the kind of device must be equal on all ranks: put it on one kind, "
        "with tf.device(...)"};
  }
  return SetDifference(a, b);
}

std::string Side(int32_t rank, const std::string& value) {
  return "rank " + std::to_string(rank) + " has " + value;
}

uint64_t Bits(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// All fields.
auto Fields(const Request& request) {
  return std::tuple_cat(
      std::make_tuple(Bits(request.prescale), Bits(request.postscale)),
      std::tie(request.kind, request.device, request.reduce_op, request.root,
               request.removed_set, request.compression, request.ranks,
               request.tensors));
}

}  // namespace

bool operator==(const Request& a, const Request& b) {
  return Fields(a) == Fields(b);
}

SharedRequest::SharedRequest(Request request) {
  std::string bytes = EncodeRequest(request);
  both_ =
      std::make_shared<const Both>(Both{std::move(request), std::move(bytes)});
}

Status SharedRequest::Decode(std::string_view bytes, SharedRequest* request) {
  Both both;
  TF_HVD_RETURN_IF_ERROR(DecodeRequest(bytes, &both.request));
  both.bytes = bytes;
  request->both_ = std::make_shared<const Both>(std::move(both));
  return Status::Ok();
}

std::string EncodeRequest(const Request& request) {
  Writer out;
  out.Put(static_cast<uint8_t>(request.kind));
  out.Put(static_cast<uint8_t>(request.device));
  out.Put(static_cast<uint8_t>(request.reduce_op));
  out.Put(request.prescale);
  out.Put(request.postscale);
  out.Put(request.root);
  out.Put(request.removed_set);
  out.PutText(request.compression);
  out.Put(static_cast<uint32_t>(request.ranks.size()));
  for (const int32_t rank : request.ranks) out.Put(rank);
  out.Put(static_cast<uint32_t>(request.tensors.size()));
  for (const TensorSpec& tensor : request.tensors) {
    out.Put(static_cast<uint8_t>(tensor.dtype));
    out.Put(static_cast<uint8_t>(tensor.shape.size()));
    for (const int64_t dim : tensor.shape) out.Put(dim);
    out.PutText(tensor.name);
  }
  return out.Take();
}

Status DecodeRequest(std::string_view bytes, Request* request) {
  Reader in(bytes);
  *request = Request();
  request->kind = static_cast<OpKind>(in.Get<uint8_t>());
  request->device = static_cast<DeviceKind>(in.Get<uint8_t>());
  request->reduce_op = static_cast<ReduceOp>(in.Get<uint8_t>());
  request->prescale = in.Get<double>();
  request->postscale = in.Get<double>();
  request->root = in.Get<int32_t>();
  request->removed_set = in.Get<int32_t>();
  request->compression = in.GetText();
  for (uint32_t n = in.Get<uint32_t>(); n > 0 && in.ok(); --n) {
    request->ranks.push_back(in.Get<int32_t>());
  }
  for (uint32_t n = in.Get<uint32_t>(); n > 0 && in.ok(); --n) {
    TensorSpec tensor;
    tensor.dtype = static_cast<DType>(in.Get<uint8_t>());
    for (uint8_t dims = in.Get<uint8_t>(); dims > 0 && in.ok(); --dims) {
      tensor.shape.push_back(in.Get<int64_t>());
    }
    tensor.name = in.GetText();
    request->tensors.push_back(std::move(tensor));
  }
  if (!in.AtEnd()) return Internal("bug in tf_hvd: a request is malformed");
  return Status::Ok();
}

int64_t ScatteredRows(int64_t rows, size_t ranks, size_t place) {
  const auto count = static_cast<int64_t>(ranks);
  return rows / count + (static_cast<int64_t>(place) < rows % count ? 1 : 0);
}

int64_t TotalBytes(const Request& request) {
  int64_t bytes = 0;
  for (const TensorSpec& tensor : request.tensors) {
    int64_t count = 1;
    for (const int64_t dim : tensor.shape) count *= dim < 0 ? 1 : dim;
    bytes += count * static_cast<int64_t>(SizeOf(tensor.dtype));
  }
  return bytes;
}

std::string DescribeMismatch(std::string_view name, int32_t rank_a,
                             const Request& a, int32_t rank_b,
                             const Request& b) {
  const std::string quoted = "'" + std::string(name) + "'";
  const Difference found = FirstDifference(a, b);
  const std::string what =
      a.kind == b.kind ? NameOf(a.kind) + (" " + quoted) : quoted;
  return "mismatch in " + what + ": " + Side(rank_a, found.a) + ", " +
         Side(rank_b, found.b) + "; " + found.rule;
}

}  // namespace tf_hvd
