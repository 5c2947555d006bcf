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
  int32_t set = kWorldSet;
  std::string name;
  Request request;
  std::string error;  // not empty: it fails with this text
  int32_t last = 0;   // join: the last rank; add_process_set: the new set
  SetMembers ranks;   // of the set
  std::optional<Entry> own;  // absent if this rank has joined, or refused
  bool is_root = false;      // broadcast: this rank is the root
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_TASK_H_
