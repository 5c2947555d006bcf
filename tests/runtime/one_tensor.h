// A request of one tensor.
#ifndef TF_HVD_TESTS_RUNTIME_ONE_TENSOR_H_
#define TF_HVD_TESTS_RUNTIME_ONE_TENSOR_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/request/request.h"

namespace tf_hvd {

inline Request OneTensor(DType dtype, std::vector<int64_t> shape,
                         OpKind kind = OpKind::kAllreduce) {
  Request request;
  request.kind = kind;
  request.tensors.push_back({dtype, std::move(shape)});
  return request;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_ONE_TENSOR_H_
