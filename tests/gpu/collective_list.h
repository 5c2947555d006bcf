// Collectives of tensors on GPUs whose results are small whole numbers, and so
// the same in any order and type: each is compared bit for bit.
#ifndef TF_HVD_TESTS_GPU_COLLECTIVE_LIST_H_
#define TF_HVD_TESTS_GPU_COLLECTIVE_LIST_H_

#include <cstddef>

#include "base/status.h"
#include "tests/gpu/device_rank.h"

namespace tf_hvd {

size_t CollectiveCount();

// Makes all of them, first one after the other, then all at once. All ranks of
// the job call it. The error names the collective.
Status CheckCollectives(DeviceRank& rank);

// Large allreduces again and again, amid which the process of rank `killed`
// ends by SIGKILL. Well if this rank is told of that, and prints after how
// long; the runtime can do nothing more then. All ranks of the job call it, as
// processes.
Status KillAmidAllreduces(DeviceRank& rank, int killed);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_COLLECTIVE_LIST_H_
