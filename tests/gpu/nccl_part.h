// One rank's part in a call of NCCL or a group of calls, and the results of all
// ranks' parts. Pure.
#ifndef TF_HVD_TESTS_GPU_NCCL_PART_H_
#define TF_HVD_TESTS_GPU_NCCL_PART_H_

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/transport/gpu/nccl_api.h"

namespace tf_hvd {

enum class NcclKind : int {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kReceive,
};

const char* NameOf(NcclKind kind);  // "ncclAllReduce"

struct NcclRequest {
  NcclKind kind = NcclKind::kAllReduce;
  size_t count = 0;
  NcclNumber type = NcclNumber::kUint8;
  NcclReduction op = NcclReduction::kSum;
  int peer = 0;  // or root

  size_t bytes() const;  // of `count`
  // Bytes that one of `ranks` ranks reads and writes.
  size_t InputBytes(size_t rank, size_t ranks) const;
  size_t OutputBytes(size_t ranks) const;
};

struct NcclPart {
  std::vector<NcclRequest> requests;
  std::vector<std::string> inputs;  // the bytes that each request reads
  // False if memory was accessed that must not be: there are no results.
  bool sound = true;

  // The part that must be the same on all ranks.
  std::string Describe() const;

  std::string Encode() const;
  static NcclPart Decode(const std::string& text);
};

// The data that request `i` of the rank writes. `wrong` describes a mismatch,
// if any.
std::string ResultOf(const std::vector<NcclPart>& parts, size_t rank, size_t i,
                     std::string* wrong);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_NCCL_PART_H_
