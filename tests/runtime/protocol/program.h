// Program: the calls of each rank of a simulated job, determined before the job
// runs. All ranks make the same calls, except for the scenario's changes; a
// rank's order, pace and style of waiting differ.
#ifndef TF_HVD_TESTS_RUNTIME_PROTOCOL_PROGRAM_H_
#define TF_HVD_TESTS_RUNTIME_PROTOCOL_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/request/request.h"
#include "tests/runtime/protocol/history.h"
#include "tests/runtime/protocol/random.h"

namespace tf_hvd::protocol_test {

struct Call {
  int set = 0;  // which of the job's sets; 0 is the world
  std::string name;
  Request request;
  std::string local_error;
  int64_t step = -1;
  int adds = -1;         // adds the set with this index
  int removes = -1;      // removes the set with this index
  bool late = false;     // made between join() and its return
  bool at_once = false;  // in the same instant as the previous call
};

// A thread of a rank.
struct Lane {
  bool blocking = false;  // waits for each call before the next
  std::vector<Call> calls;
};

// Lanes that run concurrently. The next phase begins when all calls have ended;
// if `hurries`, when all have been made.
struct Phase {
  std::vector<Lane> lanes;
  bool hurries = false;
};

struct Event {
  enum Kind { kKill, kStop, kLeave };
  Kind kind = kKill;
  int rank = 0;
  int64_t time_ns = 0;
};

struct Program {
  std::vector<std::vector<Phase>> ranks;
  std::vector<int64_t> start_ns;  // of each rank
  std::vector<Event> events;
  bool slow_edges = false;  // all take long
};

// Writes the scenario and the data for the checks into `history`.
Program MakeProgram(int size, Random* random, History* history);

}  // namespace tf_hvd::protocol_test

#endif  // TF_HVD_TESTS_RUNTIME_PROTOCOL_PROGRAM_H_
