// Forks: limits what a child of fork() may do with its parent's runtime. The
// child has a copy of everything except the threads and the membership in the
// job. It may query the parent's rank and size, and nothing else.
#ifndef TF_HVD_BASE_FORKS_H_
#define TF_HVD_BASE_FORKS_H_

#include <string>

#include "base/mutex.h"

namespace tf_hvd {

// Starts watching for forks; further calls do nothing. Any thread.
void WatchForks();

// True in a process that was forked after WatchForks was called. Any thread.
bool InForkedChild();

// A lock that is never held in a forked child: fork waits until it is free. It
// protects state that a child may query. Never held while blocking. Any thread.
Mutex* ForkSafeMutex();

// The error text for a collective in a forked child of rank `rank`.
std::string ForkedText(int rank);

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_FORKS_H_
