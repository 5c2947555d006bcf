// The error text for ranks that call one collective differently. Pure.
#ifndef TF_HVD_RUNTIME_REQUEST_MISMATCH_H_
#define TF_HVD_RUNTIME_REQUEST_MISMATCH_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/request/request.h"

namespace tf_hvd {

// The first difference between two requests, as a sentence with both values and
// both ranks' numbers. Checked in the order of docs/errors.md.
std::string DescribeMismatch(std::string_view name, int32_t rank_a,
                             const Request& a, int32_t rank_b,
                             const Request& b);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_REQUEST_MISMATCH_H_
