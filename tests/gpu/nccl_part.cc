#include "tests/gpu/nccl_part.h"

#include <algorithm>
#include <cstring>

#include "compute/buffer_ops.h"

namespace tf_hvd {
namespace {

DType DTypeOf(NcclNumber type) {
  constexpr DType kTypes[] = {DType::kInt8,    DType::kUint8,   DType::kInt32,
                              DType::kUint32,  DType::kInt64,   DType::kUint64,
                              DType::kFloat16, DType::kFloat32, DType::kFloat64,
                              DType::kBfloat16};
  return kTypes[static_cast<size_t>(type)];
}

ReduceOp ReduceOpOf(NcclReduction op) {
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct,
                               ReduceOp::kMax, ReduceOp::kMin};
  return kOps[static_cast<size_t>(op)];
}

template <typename T>
void Append(const T& value, std::string* text) {
  text->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Take(const std::string& text, size_t* at) {
  T value;
  std::memcpy(&value, text.data() + *at, sizeof(value));
  *at += sizeof(value);
  return value;
}

bool IsPointToPoint(NcclKind kind) {
  return kind == NcclKind::kSend || kind == NcclKind::kReceive;
}

// The requests of a part for, or from, one peer, by their number.
std::vector<size_t> Among(const NcclPart& part, NcclKind kind, size_t peer) {
  std::vector<size_t> found;
  for (size_t i = 0; i < part.requests.size(); ++i) {
    const NcclRequest& request = part.requests[i];
    if (request.kind == kind && request.peer == static_cast<int>(peer)) {
      found.push_back(i);
    }
  }
  return found;
}

// The data that the peer sends to the rank with the send of this number.
std::string Received(const std::vector<NcclPart>& parts, size_t rank, size_t i,
                     std::string* wrong) {
  const NcclRequest& request = parts[rank].requests[i];
  const auto peer = static_cast<size_t>(request.peer);
  const auto mine = Among(parts[rank], NcclKind::kReceive, peer);
  const auto theirs = Among(parts[peer], NcclKind::kSend, rank);
  const auto place = static_cast<size_t>(
      std::find(mine.begin(), mine.end(), i) - mine.begin());
  if (place >= theirs.size() ||
      parts[peer].requests[theirs[place]].count != request.count) {
    *wrong = "a receive without a matching send";
    return "";
  }
  return parts[peer].inputs[theirs[place]];
}

std::string Reduced(const std::vector<NcclPart>& parts,
                    const NcclRequest& request, size_t i, size_t offset) {
  std::vector<const void*> inputs;
  for (const NcclPart& part : parts) {
    inputs.push_back(part.inputs[i].data() + offset);
  }
  ReduceOptions options;
  options.dtype = DTypeOf(request.type);
  options.op = ReduceOpOf(request.op);
  std::string result(request.bytes(), '\0');
  ReduceInputs(options, inputs, static_cast<int64_t>(request.count),
               result.data());
  return result;
}

}  // namespace

const char* NameOf(NcclKind kind) {
  constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduceScatter",
                                    "ncclAllGather", "ncclBroadcast",
                                    "ncclSend",      "ncclRecv"};
  return kNames[static_cast<size_t>(kind)];
}

size_t NcclRequest::bytes() const { return count * SizeOf(DTypeOf(type)); }

size_t NcclRequest::InputBytes(size_t rank, size_t ranks) const {
  if (kind == NcclKind::kReceive) return 0;
  const bool is_root = static_cast<int>(rank) == peer;
  if (kind == NcclKind::kBroadcast && !is_root) return 0;
  return kind == NcclKind::kReduceScatter ? bytes() * ranks : bytes();
}

size_t NcclRequest::OutputBytes(size_t ranks) const {
  if (kind == NcclKind::kSend) return 0;
  return kind == NcclKind::kAllGather ? bytes() * ranks : bytes();
}

std::string NcclPart::Describe() const {
  std::string text;
  for (const NcclRequest& request : requests) {
    // Each rank sends to different peers.
    if (IsPointToPoint(request.kind)) return "sends and receives";
    text += std::string(NameOf(request.kind)) + " of " +
            std::to_string(request.count) + ", type " +
            std::to_string(static_cast<int>(request.type)) + ", op " +
            std::to_string(static_cast<int>(request.op)) + ", root " +
            std::to_string(request.peer) + "; ";
  }
  return text;
}

std::string NcclPart::Encode() const {
  std::string text;
  Append(sound, &text);
  Append(requests.size(), &text);
  for (size_t i = 0; i < requests.size(); ++i) {
    Append(requests[i], &text);
    Append(inputs[i].size(), &text);
    text += inputs[i];
  }
  return text;
}

NcclPart NcclPart::Decode(const std::string& text) {
  size_t at = 0;
  NcclPart part;
  part.sound = Take<bool>(text, &at);
  for (auto left = Take<size_t>(text, &at); left > 0; --left) {
    part.requests.push_back(Take<NcclRequest>(text, &at));
    const auto bytes = Take<size_t>(text, &at);
    part.inputs.push_back(text.substr(at, bytes));
    at += bytes;
  }
  return part;
}

std::string ResultOf(const std::vector<NcclPart>& parts, size_t rank, size_t i,
                     std::string* wrong) {
  const NcclRequest& request = parts[rank].requests[i];
  switch (request.kind) {
    case NcclKind::kSend:
      return "";
    case NcclKind::kReceive:
      return Received(parts, rank, i, wrong);
    case NcclKind::kBroadcast:
      return parts[static_cast<size_t>(request.peer)].inputs[i];
    case NcclKind::kAllGather: {
      std::string all;
      for (const NcclPart& part : parts) all += part.inputs[i];
      return all;
    }
    case NcclKind::kReduceScatter:
      return Reduced(parts, request, i, rank * request.bytes());
    default:
      return Reduced(parts, request, i, 0);
  }
}

}  // namespace tf_hvd
