// Changes what the ranks agreed on of a task.
#ifndef TF_HVD_TESTS_RUNTIME_TASK_REQUEST_H_
#define TF_HVD_TESTS_RUNTIME_TASK_REQUEST_H_

#include <utility>
#include <vector>

#include "runtime/request/entry.h"

namespace tf_hvd {

// `change(Request*)`.
template <typename Change>
void ChangeRequest(Task* task, const Change& change) {
  Request request = *task->request;
  change(&request);
  task->request = SharedRequest(std::move(request));
}

inline void SetTensors(Task* task, std::vector<TensorSpec> tensors) {
  ChangeRequest(task, [&](Request* request) { request->tensors = tensors; });
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TASK_REQUEST_H_
