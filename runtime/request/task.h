// Task: one agreed request, as the executor gets it. Plain data, owned by the
// holder of the progress lock.
#ifndef TF_HVD_RUNTIME_REQUEST_TASK_H_
#define TF_HVD_RUNTIME_REQUEST_TASK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/request/entry.h"
#include "runtime/request/key.h"
#include "runtime/request/request.h"

namespace tf_hvd {

struct Task {
  Key key;
  SharedRequest request;     // what the ranks agreed on
  std::string error;         // not empty: it fails with this text
  int32_t value = 0;         // of its completion
  SetMembers ranks;          // of the set
  std::optional<Entry> own;  // absent if this rank has joined, or refused
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_TASK_H_
