#include "runtime/execution/idling.h"

#include <gtest/gtest.h>

namespace tf_hvd {
namespace {

struct Row {
  const char* name;
  WaitState state;
  int64_t limit_ns;
};

WaitState Idle(int64_t idle_ns, bool polled) {
  WaitState state;
  state.idle_ns = idle_ns;
  state.spin_ns = 50 * kUs;
  state.polled = polled;
  return state;
}

template <typename Change>
WaitState With(WaitState state, const Change& change) {
  change(&state);
  return state;
}

TEST(WaitLimit, Table) {
  const WaitState soon = Idle(10 * kUs, true);
  const WaitState later = Idle(8 * kMs, true);
  const WaitState long_ago = Idle(1000 * kMs, true);
  const WaitState rung = Idle(8 * kMs, false);
  const auto waits = [](WaitState* s) { s->waiting = true; };
  const auto relays = [](WaitState* s) { s->relays = true; };
  const auto moves = [](WaitState* s) { s->moving = true; };
  const auto moves_and_rings = [](WaitState* s) {
    s->moving = s->rings = true;
  };
  const auto leaves = [](WaitState* s) { s->leaving = true; };
  const Row rows[] = {
      {"outcomes", With(rung, [](auto* s) { s->has_outcomes = true; }), 0},
      {"no room", With(rung, [](auto* s) { s->has_output = true; }), kMs},
      {"abort", With(rung, [](auto* s) { s->aborting = true; }), kMs},
      {"spins", With(soon, waits), 0},
      {"relays do not spin", With(soon, relays), 50 * kUs},
      {"waits", With(later, waits), 500 * kUs},
      {"waits long", With(long_ago, waits), kMs},
      // A leader that relays for a set it is not a member of.
      {"relays", With(later, relays), 500 * kUs},
      {"relays long", With(long_ago, relays), kMs},
      {"leaves", With(later, leaves), 500 * kUs},
      {"nothing to do", later, 20 * kMs},
      // Operations are in progress: data rings no bell.
      {"moves", With(Idle(900 * kUs, false), moves), 0},
      {"moves, late", With(rung, moves), 500 * kUs},
      {"moves, very late", With(long_ago, moves), kMs},
      // On a device: the end of an operation rings, an error does not.
      {"moves, and rings", With(Idle(0, false), moves_and_rings), kMs},
      {"moves, and rings, late", With(rung, moves_and_rings), kMs},
      {"moves, and rings, polled", With(later, moves_and_rings), 500 * kUs},
      {"rung, waits", With(rung, waits), 100 * kMs},
      {"rung, relays", With(rung, relays), 1000 * kMs},
      {"rung, leaves", With(rung, leaves), 100 * kMs},
      {"rung, nothing to do", rung, 1000 * kMs},
      // Other ranks wait for this rank's next message, whatever arrives.
      {"due", With(rung, [](auto* s) { s->due_in_ns = 7 * kMs; }), 7 * kMs},
      {"overdue", With(rung, [](auto* s) { s->due_in_ns = -kMs; }), 0},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(WaitLimitNs(row.state), row.limit_ns) << row.name;
  }
}

}  // namespace
}  // namespace tf_hvd
