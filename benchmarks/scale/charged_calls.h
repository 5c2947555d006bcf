// What costs time in the runtime's code, and the clock that it reads: copies,
// sums and the time are calls to these functions instead (the linker's --wrap,
// see BUILD), so that what is simulated is the code that is shipped.
//
// Tensors and slots lie at addresses where nothing is: a copy from or to there
// is charged, and not made. All else is copied as ever.
#ifndef TF_HVD_BENCHMARKS_SCALE_CHARGED_CALLS_H_
#define TF_HVD_BENCHMARKS_SCALE_CHARGED_CALLS_H_

#include <cstddef>

namespace tf_hvd::scale {

// What a core does, nanoseconds.
struct CoreCosts {
  double call_ns = 20;          // each copy or sum
  double copy_byte_ns = 0.1;    // each byte that is copied
  double reduce_byte_ns = 0.1;  // each byte of each input that is summed
};

void SetCoreCosts(const CoreCosts& costs);

// Addresses for `bytes` bytes. Never given back.
char* ReserveAddresses(size_t bytes);
// The first bytes of what was reserved are memory after all, all zero.
void BackWithMemory(char* reserved, size_t bytes);

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_CHARGED_CALLS_H_
