// The invariants of the agreement (agreement.md, section 9), checked on the
// history of a simulated run.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_CHECKS_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_CHECKS_H_

#include <string>

#include "tests/runtime/protocol/history.h"

namespace tf_hvd::protocol_test {

// The violated invariant; empty if all hold.
std::string CheckHistory(const History& history);

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_CHECKS_H_
