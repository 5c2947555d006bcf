// Lookups in a shared library that was loaded at run time. Header-only, because
// MPI's shims, which link nothing of tf_hvd, use it too.
#ifndef TF_HVD_BASE_SHARED_LIBRARY_H_
#define TF_HVD_BASE_SHARED_LIBRARY_H_

#include <dlfcn.h>

#include <string>

namespace tf_hvd {

// Looks up names in one library and remembers the first missing one.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void Find(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(Address(name));
  }

  // Null if the library lacks the name, which then does not count as missing.
  template <typename Function>
  void FindExtension(const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library_, name));
  }

  void* Address(const char* name) {
    void* const address = dlsym(library_, name);
    if (address == nullptr && missing_ == nullptr) missing_ = name;
    return address;
  }

  // Null if nothing is missing.
  const char* missing() const { return missing_; }

 private:
  void* const library_;
  const char* missing_ = nullptr;
};

// The file that the library with this address was loaded from, according to the
// loader; `otherwise` if the loader does not know it.
inline std::string PathOf(void* address, const std::string& otherwise) {
  Dl_info info;
  if (address == nullptr || dladdr(address, &info) == 0) return otherwise;
  return info.dli_fname == nullptr ? otherwise : std::string(info.dli_fname);
}

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_SHARED_LIBRARY_H_
