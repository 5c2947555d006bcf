// Forks: what a child of fork() may still do with the runtime of its parent. It
// has a copy of everything but the threads and the place in the job: it may
// ask who its parent is, and nothing else.
#ifndef TF_HVD_BASE_FORKS_H_
#define TF_HVD_BASE_FORKS_H_

#include <string>

#include "base/mutex.h"

namespace tf_hvd {

// Notes forks from now on; a second call does nothing. Any thread.
void WatchForks();

// True in a process that was forked from one that had called WatchForks. Any
// thread.
bool InForkedChild();

// A lock that a child of fork() never finds taken: fork waits for it. For what
// a child may ask; never held while anything waits. Any thread.
Mutex* ForkSafeMutex();

// Why a collective fails in a forked child of rank `rank`.
std::string ForkedText(int rank);

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_FORKS_H_
