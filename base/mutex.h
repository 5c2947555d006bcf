// Mutex and MutexLock: std::mutex and std::unique_lock with annotations for
// Clang's thread safety analysis, which `./dev lint` runs. The macros have the
// names of Clang's documentation, and are empty for other compilers.
//
// A std::condition_variable waits with MutexLock::native(). The predicate of
// the wait names the mutex, because the analysis treats each lambda separately:
//
//   changed_.wait(lock.native(), [this]() REQUIRES(mutex_) { return ended_; });
#ifndef TF_HVD_BASE_MUTEX_H_
#define TF_HVD_BASE_MUTEX_H_

#include <mutex>

#if defined(__clang__)
#define TF_HVD_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define TF_HVD_THREAD_ANNOTATION(x)
#endif

// Mark a class as a lock, and as the scoped holder of a lock.
#define CAPABILITY(x) TF_HVD_THREAD_ANNOTATION(capability(x))
#define SCOPED_CAPABILITY TF_HVD_THREAD_ANNOTATION(scoped_lockable)

// Mark a variable, and the object it points to, as protected by the lock.
#define GUARDED_BY(x) TF_HVD_THREAD_ANNOTATION(guarded_by(x))
#define PT_GUARDED_BY(x) TF_HVD_THREAD_ANNOTATION(pt_guarded_by(x))

// Mark a function that must be called with, or without, the lock held.
#define REQUIRES(...) TF_HVD_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) TF_HVD_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

// Mark a function that acquires the lock, releases it, or acquires it if it
// returns the first argument.
#define ACQUIRE(...) TF_HVD_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) TF_HVD_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) \
  TF_HVD_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))

namespace tf_hvd {

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }
  bool TryLock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex until the end of its scope, except between Unlock and Lock.
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ACQUIRE(mutex) : lock_(mutex->mutex_) {}
  // Takes over a mutex that this thread has locked.
  MutexLock(Mutex* mutex, std::adopt_lock_t adopt) REQUIRES(mutex)
      : lock_(mutex->mutex_, adopt) {}
  ~MutexLock() RELEASE() = default;

  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Lock() ACQUIRE() { lock_.lock(); }
  void Unlock() RELEASE() { lock_.unlock(); }

  // For std::condition_variable.
  std::unique_lock<std::mutex>& native() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_MUTEX_H_
