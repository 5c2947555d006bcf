// Changes the agreed request of a response.
#ifndef TF_HVD_TESTS_RUNTIME_RESPONSE_REQUEST_H_
#define TF_HVD_TESTS_RUNTIME_RESPONSE_REQUEST_H_

#include <utility>
#include <vector>

#include "runtime/agreement/response.h"

namespace tf_hvd {

// `change(Request*)`.
template <typename Change>
void ChangeRequest(Response* response, const Change& change) {
  Request request = *response->request;
  change(&request);
  response->request = SharedRequest(std::move(request));
}

inline void SetTensors(Response* response, std::vector<TensorSpec> tensors) {
  ChangeRequest(response,
                [&](Request* request) { request->tensors = tensors; });
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_RESPONSE_REQUEST_H_
