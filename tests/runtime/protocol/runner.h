// Runner: makes one rank's calls, on the virtual clock.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_RUNNER_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_RUNNER_H_

#include <cstdint>
#include <map>
#include <vector>

#include "tests/runtime/protocol/program.h"
#include "tests/runtime/protocol/sim_world.h"

namespace tf_hvd::protocol_test {

class Runner {
 public:
  // `world` outlives the runner, and the runner all events of the world.
  Runner(SimWorld* world, int rank, std::vector<Phase> phases);

  void Start() { RunPhase(0); }
  // Makes no further calls, as after an exception.
  void Halt() { halted_ = true; }

 private:
  void RunPhase(size_t phase);
  int64_t RunLane(size_t phase, const Lane& lane);
  void CallNext(size_t phase, const Lane& lane, size_t next);
  void LaneEnded(size_t phase);
  void Make(const Call& call, SimWorld::Done done);

  SimWorld* const world_;
  const int rank_;
  const std::vector<Phase> phases_;
  bool halted_ = false;
  std::vector<size_t> lanes_left_;      // by phase
  std::map<int, int32_t> set_numbers_;  // by the program's index
};

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_RUNNER_H_
