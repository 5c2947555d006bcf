// Whether functions pass two types in the same way: tf_hvd's tables have
// separate types for the enumerations and structs of CUDA's and NCCL's headers.
#ifndef TF_HVD_TESTS_GPU_ALIKE_H_
#define TF_HVD_TESTS_GPU_ALIKE_H_

#include <type_traits>

namespace tf_hvd {

template <typename A, typename B>
constexpr bool AreAlike();

// Integers and enumerations of one size; structs of one size and alignment,
// with any members; pointers to types that are alike, constant on both sides or
// on neither. A pointer to void is only like itself.
template <typename A, typename B>
struct Alike {
  static constexpr bool Value() {
    if constexpr (std::is_same_v<A, B>) {
      return true;
    } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
      using To = std::remove_pointer_t<A>;
      using AlsoTo = std::remove_pointer_t<B>;
      return std::is_const_v<To> == std::is_const_v<AlsoTo> &&
             AreAlike<std::remove_cv_t<To>, std::remove_cv_t<AlsoTo>>();
    } else if constexpr (IsNumber<A>() && IsNumber<B>()) {
      return sizeof(A) == sizeof(B);
    } else if constexpr (std::is_class_v<A> && std::is_class_v<B>) {
      return sizeof(A) == sizeof(B) && alignof(A) == alignof(B) &&
             std::is_trivially_copyable_v<A> == std::is_trivially_copyable_v<B>;
    } else {
      return false;
    }
  }

 private:
  template <typename T>
  static constexpr bool IsNumber() {
    return std::is_integral_v<T> || std::is_enum_v<T>;
  }
};

// Functions with their results and arguments.
template <typename A, typename... As, typename B, typename... Bs>
struct Alike<A(As...), B(Bs...)> {
  static constexpr bool Value() {
    if constexpr (sizeof...(As) == sizeof...(Bs)) {
      return AreAlike<A, B>() && (AreAlike<As, Bs>() && ...);
    } else {
      return false;
    }
  }
};

template <typename A, typename B>
constexpr bool AreAlike() {
  return Alike<A, B>::Value();
}

// The checks of the tables must be able to fail.
static_assert(
    AreAlike<int (*)(int, const char**), int (*)(int, const char**)>());
static_assert(!AreAlike<int (*)(int), int (*)(int, int)>());
static_assert(!AreAlike<int (*)(int, long), int (*)(long, int)>());
static_assert(!AreAlike<int, float>() && !AreAlike<int*, const int*>());
static_assert(!AreAlike<int, char>() && !AreAlike<int, short>());
static_assert(!AreAlike<void*, int*>() && !AreAlike<void*, void**>());

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_ALIKE_H_
