#include "tests/runtime/protocol/simulation.h"

#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/runtime/protocol/checks.h"
#include "tests/runtime/protocol/program.h"
#include "tests/runtime/protocol/runner.h"

namespace tf_hvd::protocol_test {
namespace {

// Far beyond every limit of the protocol.
constexpr int64_t kEndNs = 1000 * kSecond;

bool IsEmpty(const Controller& controller) {
  return controller.votes().empty() && controller.ordering().empty() &&
         !controller.Waiting() && controller.own().executing().empty();
}

class Simulation {
 public:
  Simulation(uint64_t seed, const SimOptions& options)
      : world_(seed, options) {}

  Outcome Run();

 private:
  void Start();
  void Schedule(const Event& event);
  void CheckQuiet();
  void CloseAll();
  void CheckEmpty();

  std::vector<std::unique_ptr<Runner>> runners_;
  SimWorld world_;  // destroyed first: its events refer to the runners
};

void Simulation::Start() {
  const Program program =
      MakeProgram(world_.size(), world_.random(), world_.history());
  if (program.slow_edges) world_.SlowDown();
  for (int r = 0; r < world_.size(); ++r) {
    const auto at = static_cast<size_t>(r);
    runners_.push_back(std::make_unique<Runner>(&world_, r, program.ranks[at]));
    world_.events()->After(
        program.start_ns[at],
        [runner = runners_.back().get()] { runner->Start(); });
  }
  for (const Event& event : program.events) Schedule(event);
}

void Simulation::Schedule(const Event& event) {
  world_.events()->After(event.time_ns, [this, event] {
    switch (event.kind) {
      case Event::kKill:
        return world_.Kill(event.rank);
      case Event::kStop:
        return world_.Stop(event.rank);
      case Event::kLeave:
        runners_[static_cast<size_t>(event.rank)]->Halt();
        return world_.Leave(event.rank, "ValueError: no such file", false);
    }
  });
}

// If nothing failed, no state is left over before the end either.
void Simulation::CheckQuiet() {
  History* const history = world_.history();
  // A name that one rank submitted once more leaves a vote that no other rank
  // joins.
  if (history->abort_ns >= 0 || !history->dead.empty() ||
      !history->stopped.empty() || history->leave_ns >= 0 ||
      history->scenario == Scenario::kDuplicateOne) {
    return;
  }
  for (int r = 0; r < world_.size(); ++r) {
    if (!IsEmpty(world_.rank(r)->controller())) {
      history->Fail("rank " + std::to_string(r) +
                    " has state left although no request waits");
    }
  }
}

// An orderly end; some ranks make another call in the middle of it.
void Simulation::CloseAll() {
  History* const history = world_.history();
  Random* const random = world_.random();
  if (!history->dead.empty() || !history->stopped.empty()) return;
  bool any_ended = false;
  for (int r = 0; r < world_.size(); ++r) {
    any_ended = any_ended || world_.rank(r)->ended();
  }
  const auto first = static_cast<int>(random->Below(world_.size()));
  for (int r = 0; r < world_.size(); ++r) {
    if (!any_ended && (r == first || random->Percent(30))) {
      world_.events()->After(random->Below(10 * kMs), [this, r] {
        world_.Leave(r, "shutdown()", true);
      });
    }
    if (!any_ended && random->Percent(70)) continue;
    world_.events()->After(random->Below(20 * kMs), [this, r] {
      Submission submission;
      submission.name = "after the end";
      world_.Submit(r, submission, Request(), [](const Submission&) {});
    });
  }
  world_.Run(world_.events()->now() + kEndNs);
}

void Simulation::CheckEmpty() {
  for (int r = 0; r < world_.size(); ++r) {
    if (!world_.history()->Alive(r)) continue;
    if (!world_.rank(r)->ended()) {
      world_.history()->Fail("rank " + std::to_string(r) + " has not ended");
    }
    if (!IsEmpty(world_.rank(r)->controller()) || !world_.rank(r)->Idle()) {
      world_.history()->Fail("rank " + std::to_string(r) +
                             " has state left after the end");
    }
  }
}

Outcome Simulation::Run() {
  History* const history = world_.history();
  Start();
  world_.Run(kEndNs);
  if (history->failure.empty()) CheckQuiet();
  if (history->failure.empty()) CloseAll();
  if (history->failure.empty()) {
    // If a rank is dead, the others may have had no reason to end.
    if ((history->dead.empty() && history->stopped.empty()) ||
        history->abort_ns >= 0) {
      CheckEmpty();
    }
    history->Fail(CheckHistory(*history));
  }
  return {NameOf(history->scenario), history->submissions.size(),
          world_.events()->count(), history->failure};
}

}  // namespace

Outcome RunSeed(uint64_t seed, const SimOptions& options) {
  return Simulation(seed, options).Run();
}

std::optional<SeedRange> ParseSeedRange(const std::string& text) {
  char* end = nullptr;
  SeedRange range;
  range.first = std::strtoull(text.c_str(), &end, 10);
  if (end == text.c_str() || *end != ':') return std::nullopt;
  const char* const count = end + 1;
  range.count = std::strtoull(count, &end, 10);
  if (end == count || *end != '\0') return std::nullopt;
  return range;
}

std::optional<std::string> FirstFailure(const SeedRange& seeds,
                                        const SimOptions& options) {
  for (uint64_t i = 0; i < seeds.count; ++i) {
    const Outcome outcome = RunSeed(seeds.first + i, options);
    if (outcome.failure.empty()) continue;
    return "seed " + std::to_string(seeds.first + i) + " (" + outcome.scenario +
           "): " + outcome.failure;
  }
  return std::nullopt;
}

}  // namespace tf_hvd::protocol_test
