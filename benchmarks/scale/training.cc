#include "benchmarks/scale/training.h"

#include <algorithm>
#include <utility>

#include "tests/runtime/protocol/random.h"

namespace tf_hvd::scale {
namespace {

double LeastOf(const std::vector<double>& jitter) {
  return jitter.empty() ? 1 : *std::min_element(jitter.begin(), jitter.end());
}

}  // namespace

double BytesOf(const Gradients& gradients) {
  double bytes = 0;
  for (const int64_t count : gradients.tensors) {
    bytes += 4 * static_cast<double>(count);
  }
  return bytes;
}

Training::Training(VirtualTime* time, const TrainingSettings& settings,
                   int ranks, Sum sum)
    : time_(time),
      settings_(settings),
      sum_(std::move(sum)),
      least_jitter_(LeastOf(settings.jitter)),
      ranks_(static_cast<size_t>(ranks)),
      left_(ranks),
      open_(static_cast<size_t>(settings.warmup + settings.steps), ranks) {}

void Training::Start() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    time_->At(0, [this, rank] { BeginStep(static_cast<int>(rank)); });
  }
}

// Equal for all schedules, so that they are compared with the same random
// draws.
Training::Pace Training::DrawPace(int rank, int step) const {
  if (settings_.jitter.empty()) return {};
  protocol_test::Random random(settings_.seed +
                               1'000'003 * static_cast<uint64_t>(rank) +
                               static_cast<uint64_t>(step) * 7'919);
  random.Next();
  const auto of = static_cast<int64_t>(settings_.jitter.size());
  const double drawn = settings_.jitter[static_cast<size_t>(random.Below(of))];
  const double delay = settings_.jitter_scale * settings_.jitter_delay;
  const double rest = settings_.jitter_scale - delay;
  Pace pace;
  pace.factor = 1 + rest * (drawn - 1) + delay * (least_jitter_ - 1);
  pace.point = static_cast<double>(random.Below(1000)) / 1000;
  pace.delay_ns = delay * (drawn - least_jitter_) * settings_.compute_ns;
  return pace;
}

void Training::BeginStep(int rank) {
  Rank& one = ranks_[static_cast<size_t>(rank)];
  const Pace pace = DrawPace(rank, one.step);
  const auto at = [&, now = static_cast<double>(time_->now())](double ns) {
    const bool late = ns >= pace.point * settings_.compute_ns;
    return WholeNs(now + pace.factor * ns + (late ? pace.delay_ns : 0));
  };
  one.open = settings_.gradients.size() + 1;
  for (size_t i = 0; i < settings_.gradients.size(); ++i) {
    time_->At(at(settings_.gradients[i].ready_ns), [this, rank, i] {
      sum_(rank, i, [this, rank] { EndPart(rank); });
    });
  }
  time_->At(at(settings_.compute_ns), [this, rank] { EndPart(rank); });
}

void Training::EndPart(int rank) {
  if (--ranks_[static_cast<size_t>(rank)].open > 0) return;
  time_->At(time_->now() + WholeNs(settings_.update_ns),
            [this, rank] { EndStep(rank); });
}

void Training::EndStep(int rank) {
  const auto step = static_cast<size_t>(ranks_[static_cast<size_t>(rank)].step);
  if (--open_[step] == 0) {
    const auto now = static_cast<double>(time_->now());
    if (static_cast<int>(step) >= settings_.warmup) {
      steps_ns_.push_back(now - last_end_ns_);
    }
    last_end_ns_ = now;
  }
  const int next = ++ranks_[static_cast<size_t>(rank)].step;
  if (next < settings_.warmup + settings_.steps) {
    BeginStep(rank);
  } else {
    --left_;
  }
}

}  // namespace tf_hvd::scale
