// Virtual time for the runtime's code: copies, sums and clock readings call
// these functions instead (the linker's --wrap, see BUILD), so that the
// simulation runs the code that is shipped.
//
// Tensors and slots are at addresses without memory: a copy from or to there is
// charged but not made. All other copies are made as usual.
#ifndef TF_HVD_BENCHMARKS_SCALE_CHARGED_CALLS_H_
#define TF_HVD_BENCHMARKS_SCALE_CHARGED_CALLS_H_

#include <cstddef>

namespace tf_hvd::scale {

// Costs of a core in nanoseconds.
struct CoreCosts {
  double call_ns = 20;          // each copy or sum
  double copy_byte_ns = 0.1;    // each copied byte
  double reduce_byte_ns = 0.1;  // each byte of each summed input
};

void SetCoreCosts(const CoreCosts& costs);

// Reserves addresses for `bytes` bytes. They are never released.
char* ReserveAddresses(size_t bytes);
// Backs the first bytes of the reserved range with memory, all zero.
void BackWithMemory(char* reserved, size_t bytes);

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_CHARGED_CALLS_H_
