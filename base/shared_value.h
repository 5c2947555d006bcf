// SharedValue: a container shared by all its copies. It is changed only by
// assigning another as a whole. For the ranks of a large job, each deep copy
// would take a megabyte.
//
// Thread safety is that of a std::shared_ptr to const: copies may be read on
// any thread.
#ifndef TF_HVD_BASE_SHARED_VALUE_H_
#define TF_HVD_BASE_SHARED_VALUE_H_

#include <cstddef>
#include <memory>
#include <utility>

namespace tf_hvd {

template <typename T>
class SharedValue {
 public:
  SharedValue& operator=(T value) {
    value_ = std::make_shared<const T>(std::move(value));
    return *this;
  }

  const T& get() const {
    static const T empty;
    return value_ == nullptr ? empty : *value_;
  }
  // NOLINTNEXTLINE(google-explicit-constructor): it stands for one.
  operator const T&() const { return get(); }

  size_t size() const { return get().size(); }
  decltype(auto) operator[](size_t index) const { return get()[index]; }
  decltype(auto) front() const { return get().front(); }
  auto begin() const { return get().begin(); }
  auto end() const { return get().end(); }

 private:
  std::shared_ptr<const T> value_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_SHARED_VALUE_H_
