// Stores that go past the caches: non-temporal stores (Intel's Software
// Developer's Manual, volume 1, section 10.4.6.2). Where two cores share no
// cache, a line that an ordinary store leaves in the writer's cache is fetched
// from there, line by line; a line that was streamed lies in memory, from where
// the reader's prefetcher takes it at full speed.
//
// Pure functions on the given memory; any thread.
#ifndef TF_HVD_COMPUTE_STREAMING_H_
#define TF_HVD_COMPUTE_STREAMING_H_

#include <cstddef>

namespace tf_hvd {

// How memory that another core reads is written.
enum class Stores { kOrdinary, kStreaming };

// Whether this processor has streaming stores that are used here: x86-64's.
// Elsewhere all of this copies by ordinary stores.
bool HasStreamingStores();

// memcpy past the caches, for as much as fills whole lines of 64 bytes. Not
// ordered with any other store before FenceStreams.
void StreamBytes(void* to, const void* from, size_t bytes);

// Orders what this thread has streamed before all that it stores from now on.
// Counted: Counted::kFences.
void FenceStreams();

}  // namespace tf_hvd

#endif  // TF_HVD_COMPUTE_STREAMING_H_
