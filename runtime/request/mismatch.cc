#include "runtime/request/mismatch.h"

#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

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

// One side's value for a check, and the rule that the difference breaks.
struct Difference {
  std::string a;
  std::string b;
  const char* rule;
};

bool IsGroup(const Request& a, const Request& b) {
  return a.tensors.size() > 1 || b.tensors.size() > 1;
}

// The first tensor that both sides have and for which `differ` holds.
template <typename Differ>
std::optional<size_t> FirstTensor(const Request& a, const Request& b,
                                  const Differ& differ) {
  for (size_t i = 0; i < a.tensors.size() && i < b.tensors.size(); ++i) {
    if (differ(a.tensors[i], b.tensors[i])) return i;
  }
  return std::nullopt;
}

// "float32[3] as tensor 1 ('w')"; for a call with one tensor, only the type.
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

// Compares the names of a group's tensors; no rule if they are the same.
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

const char* ShapeRule(const Request& request) {
  if (!RowsDiffer(request.kind)) {
    return "the shapes must be the same on all ranks";
  }
  return request.compiled
             ? "in a compiled step all dimensions must be the same on all "
               "ranks; "
               "if the first may differ, make this call outside of the "
               "compiled step (jit_compile=False)"
             : "all dimensions but the first must be the same on all ranks";
}

Difference TensorDifference(const Request& a, const Request& b) {
  const auto other_type =
      FirstTensor(a, b, [](const TensorSpec& x, const TensorSpec& y) {
        return x.dtype != y.dtype;
      });
  if (other_type.has_value()) {
    return TensorTexts(a, b, *other_type,
                       "the data types must be the same on all ranks");
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
  return TensorTexts(a, b, *other_shape, ShapeRule(a));
}

// The caller's word for a tensor that represents a sparse one.
constexpr char kSlices[] = "IndexedSlices";

// The caller's words for integers that are sent as 64 bits, so that their sum
// does not wrap around: "uint8 averaged as int64".
constexpr std::string_view kAveraged = " averaged as int64";

bool IsAveraged(const Request& request) {
  const std::string_view text = request.compression;
  return text.size() > kAveraged.size() &&
         text.substr(text.size() - kAveraged.size()) == kAveraged;
}

// The type of the caller's tensors.
std::string OwnType(const Request& request) {
  if (IsAveraged(request)) {
    return request.compression.substr(
        0, request.compression.size() - kAveraged.size());
  }
  if (!request.compression.empty() || request.tensors.empty()) {
    return request.compression;
  }
  return NameOf(request.tensors.front().dtype);
}

// For one side that averages integers: its caller has compressed nothing.
Difference AveragedDifference(const Request& a, const Request& b) {
  const std::string type_a = OwnType(a), type_b = OwnType(b);
  if (type_a != type_b) {
    return {type_a, type_b, "the data types must be the same on all ranks"};
  }
  return {NameOf(a.reduce_op), NameOf(b.reduce_op),
          "the reduce operations must be the same on all ranks"};
}

Difference CompressionDifference(const Request& a, const Request& b) {
  if (a.compression == b.compression) return {"", "", nullptr};
  if (a.compression == kSlices || b.compression == kSlices) {
    const std::string dense = "a dense tensor";
    return {
        a.compression == kSlices ? kSlices : dense,
        b.compression == kSlices ? kSlices : dense,
        "it must be dense on all ranks or IndexedSlices on all ranks: convert "
        "it with tf.convert_to_tensor, or pass sparse_as_dense=True"};
  }
  if (IsAveraged(a) || IsAveraged(b)) return AveragedDifference(a, b);
  const std::string none = "no compression";
  return {a.compression.empty() ? none : a.compression,
          b.compression.empty() ? none : b.compression,
          "the compression must be the same on all ranks"};
}

std::string RanksText(const Request& request) {
  std::string text = "ranks";
  for (const int32_t rank : request.ranks) {
    text += (text.back() == 's' ? " " : ", ") + std::to_string(rank);
  }
  return text;
}

// "process sets [0, 1], [2]": a rank's argument to init.
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

// Add and remove: compares the process sets meant.
Difference SetDifference(const Request& a, const Request& b) {
  const char* rule = "process sets must be the same on all ranks";
  if (a.kind == OpKind::kBarrier) return {SetsText(a), SetsText(b), rule};
  if (a.kind == OpKind::kRemoveSet) {
    return {"process set " + std::to_string(a.removed_set),
            "process set " + std::to_string(b.removed_set), rule};
  }
  return {RanksText(a), RanksText(b), rule};
}

std::string CompiledText(const Request& request) {
  return request.compiled ? "a step that XLA compiles"
                          : "a step that XLA does not compile";
}

// The checks in their documented order; returns the first that fails.
Difference FirstDifference(const Request& a, const Request& b) {
  if (a.kind != b.kind) {
    return {
        NameOf(a.kind), NameOf(b.kind),
        "the operations must be the same on all ranks; give different calls "
        "different names"};
  }
  // Before the shapes, because only a compiled allgather has a first dimension.
  if (a.compiled != b.compiled) {
    return {CompiledText(a), CompiledText(b),
            "jit_compile must be the same on all ranks"};
  }
  // Before the data types, which differ because of the compression.
  const Difference compression = CompressionDifference(a, b);
  if (compression.rule != nullptr) return compression;
  // Before types and shapes, which would otherwise compare different tensors.
  const Difference members = MemberDifference(a, b);
  if (members.rule != nullptr) return members;
  const Difference tensors = TensorDifference(a, b);
  if (tensors.rule != nullptr) return tensors;
  if (a.prescale != b.prescale || a.postscale != b.postscale) {
    return {Scales(a), Scales(b), "the scales must be the same on all ranks"};
  }
  if (a.reduce_op != b.reduce_op) {
    return {NameOf(a.reduce_op), NameOf(b.reduce_op),
            "the reduce operations must be the same on all ranks"};
  }
  if (a.root != b.root) {
    return {"root rank " + std::to_string(a.root),
            "root rank " + std::to_string(b.root),
            "the root must be the same on all ranks"};
  }
  if (a.device != b.device) {
    return {
        std::string("a tensor on ") + NameOf(a.device),
        std::string("a tensor on ") + NameOf(b.device),
        "the kind of device must be the same on all ranks: put it on one kind, "
        "with tf.device(...)"};
  }
  return SetDifference(a, b);
}

std::string Side(int32_t rank, const std::string& value) {
  return "rank " + std::to_string(rank) + " has " + value;
}

}  // namespace

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
