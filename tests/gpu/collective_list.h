// Collectives of tensors on GPUs with small whole numbers as results, which are
// equal in any order and type: each is compared bit for bit.
#ifndef TF_HVD_TESTS_GPU_COLLECTIVE_LIST_H_
#define TF_HVD_TESTS_GPU_COLLECTIVE_LIST_H_

#include <cstddef>

#include "base/status.h"
#include "tests/gpu/device_rank.h"

namespace tf_hvd {

size_t CollectiveCount();

// Runs all of them, first one after the other, then all at once. All ranks of
// the job call it. The error names the collective.
Status CheckCollectives(DeviceRank& rank);

// Runs large allreduces repeatedly until the process of rank `killed` ends by
// SIGKILL. Succeeds if this rank gets an error that names that rank, and prints
// the delay. After that the runtime cannot be used. All ranks of the job call
// it, as processes.
Status KillAmidAllreduces(DeviceRank& rank, int killed);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_COLLECTIVE_LIST_H_
