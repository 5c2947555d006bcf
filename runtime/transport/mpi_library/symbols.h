// MpiSymbols: looks up what an opened MPI library has, and remembers the first
// name that is missing.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_SYMBOLS_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_SYMBOLS_H_

#include <dlfcn.h>

namespace tf_hvd {

class MpiSymbols {
 public:
  explicit MpiSymbols(void* library) : library_(library) {}

  template <typename T>
  void Function(const char* name, T* function) {
    *function = reinterpret_cast<T>(Address(name));
  }

  // Null if the library has it not.
  template <typename T>
  void Extension(const char* name, T* function) {
    *function = reinterpret_cast<T>(dlsym(library_, name));
  }

  void* Address(const char* name) {
    void* address = dlsym(library_, name);
    if (address == nullptr && missing_ == nullptr) missing_ = name;
    return address;
  }

  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_SYMBOLS_H_
