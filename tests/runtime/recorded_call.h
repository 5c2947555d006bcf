// A call as passed to the recorder, for tests.
#ifndef TF_HVD_TESTS_RUNTIME_RECORDED_CALL_H_
#define TF_HVD_TESTS_RUNTIME_RECORDED_CALL_H_

#include <cstdint>
#include <string>
#include <utility>

#include "runtime/request/entry.h"

namespace tf_hvd {

// A call with one tensor.
inline Entry CallOf(std::string name, int64_t bytes = 8,
                    OpKind kind = OpKind::kAllreduce) {
  Entry entry;
  entry.name = std::move(name);
  entry.request.kind = kind;
  entry.request.tensors = {{DType::kUint8, {bytes}}};
  return entry;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_RECORDED_CALL_H_
