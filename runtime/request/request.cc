#include "runtime/request/request.h"

#include <cstring>
#include <tuple>
#include <utility>

#include "base/wire.h"

namespace tf_hvd {
namespace {

uint64_t Bits(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// All fields.
auto Fields(const Request& request) {
  return std::tuple_cat(
      std::make_tuple(Bits(request.prescale), Bits(request.postscale)),
      std::tie(request.kind, request.device, request.compiled,
               request.reduce_op, request.root, request.removed_set,
               request.compression, request.ranks, request.tensors));
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
  out.Put(static_cast<uint8_t>(request.compiled));
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
  request->compiled = in.Get<uint8_t>() != 0;
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

}  // namespace tf_hvd
