// What finds nothing wrong with the tables must be able to.
#include "tests/gpu/alike.h"

#include <gtest/gtest.h>

namespace tf_hvd {
namespace {

enum Small : int { kSmall };
enum class Big : long { kBig };
struct Pair {
  int a, b;
};
struct OtherPair {
  int c, d;
};
struct Aligned {
  long a;
};
struct Opaque;

TEST(Alike, WhatIsPassedAlike) {
  EXPECT_TRUE((AreAlike<int, Small>()));
  EXPECT_TRUE((AreAlike<int*, Small*>()));
  EXPECT_TRUE((AreAlike<Pair, OtherPair>()));
  EXPECT_TRUE((AreAlike<const Pair**, const OtherPair**>()));
  EXPECT_TRUE((AreAlike<Opaque*, Opaque*>()));
  EXPECT_TRUE((AreAlike<int (*)(int, Pair*), Small (*)(Small, OtherPair*)>()));
  EXPECT_TRUE((AreAlike<int (*)(), Small (*)()>()));
}

TEST(Alike, WhatIsNot) {
  EXPECT_FALSE((AreAlike<int, Big>()));
  EXPECT_FALSE((AreAlike<int, float>()));
  EXPECT_FALSE((AreAlike<int, int*>()));
  EXPECT_FALSE((AreAlike<long, void*>()));
  EXPECT_FALSE((AreAlike<int*, Big*>()));
  EXPECT_FALSE((AreAlike<int*, const int*>()));
  EXPECT_FALSE((AreAlike<void*, int*>()));
  EXPECT_FALSE((AreAlike<void*, void**>()));
  EXPECT_FALSE((AreAlike<Opaque*, Opaque**>()));
  EXPECT_FALSE((AreAlike<Pair, Aligned>()));
  EXPECT_FALSE((AreAlike<int (*)(int), int (*)(int, int)>()));
  EXPECT_FALSE((AreAlike<int (*)(int, long), int (*)(long, int)>()));
  EXPECT_FALSE((AreAlike<int (*)(), long (*)()>()));
}

}  // namespace
}  // namespace tf_hvd
