// Runs the tests of code with a flaw: at least one of them must fail.
#ifndef TF_HVD_TESTS_MUTANTS_FLAWED_H_
#define TF_HVD_TESTS_MUTANTS_FLAWED_H_

#include <gtest/gtest.h>

#include <cstdio>

namespace tf_hvd {

// Returns the program's exit code. One failing test is enough.
inline int RunFlawed() {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  ::testing::GTEST_FLAG(fail_fast) = true;
  if (RUN_ALL_TESTS() != 0) return 0;
  std::puts("the flaw was not detected");
  return 1;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_MUTANTS_FLAWED_H_
