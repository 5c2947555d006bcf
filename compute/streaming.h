// Stores that bypass the caches: non-temporal stores (Intel's Software
// Developer's Manual, volume 1, section 10.4.6.2). If two cores share no cache,
// a line written by an ordinary store is fetched from the writer's cache, line
// by line. A streamed line is in memory, and the reader's prefetcher loads it
// at full speed.
//
// Pure functions on the given memory; any thread.
#ifndef TF_HVD_COMPUTE_STREAMING_H_
#define TF_HVD_COMPUTE_STREAMING_H_

#include <cstddef>

namespace tf_hvd {

// The kind of store for memory that another core reads.
enum class Stores { kOrdinary, kStreaming };

// Whether this processor has the streaming stores used here: x86-64 only. On
// other processors all functions use ordinary stores.
bool HasStreamingStores();

// memcpy that bypasses the caches for whole lines of 64 bytes. Not ordered with
// any other store before FenceStreams.
void StreamBytes(void* to, const void* from, size_t bytes);

// Orders all previous streamed stores of this thread before its later stores.
// Counted as Counted::kFences.
void FenceStreams();

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_STREAMING_H_
