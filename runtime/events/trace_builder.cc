#include "runtime/events/trace_builder.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>

#include "base/clock.h"
#include "base/types.h"

namespace tf_hvd {

const TraceNames kHorovodTraceNames = {
    "NEGOTIATE_",
    "QUEUE",
    {"MEMCPY_IN_FUSION_BUFFER", "REDUCE", nullptr, "MEMCPY_OUT_FUSION_BUFFER",
     "WAIT_FOR_RANK_"},
    "CYCLE_START"};
const TraceNames kTraceNames = {
    "agreement on ",
    "queue",
    {"pack", "reduce", "exchange", "unpack", "waiting for rank "},
    "cycle"};

namespace {

constexpr int kTensorFlowTrack = 1;
constexpr int kCycleTrack = 2;
// Number of the first track of a group.
constexpr int kLanes = 10'000;
// How long to keep phases of an operation without a call of this rank.
constexpr int64_t kForgetNs = kSecond;

std::string Capitals(const char* text) {
  std::string capitals(text);
  for (char& c : capitals) c = static_cast<char>(std::toupper(c));
  return capitals;
}

std::string ShapeText(const RecordedCall& call) {
  const auto known =
      std::min(call.shape.size(), static_cast<size_t>(call.dimensions));
  return Describe(call.dtype, {call.shape.begin(), call.shape.begin() + known});
}

constexpr std::array<const char*, 5> kCodes = {"ok", "invalid", "disagreement",
                                               "aborted", "bug"};

}  // namespace

TraceBuilder::TraceBuilder(TraceHead head, const Recorder* recorder,
                           PhaseLog* phases, TraceForm* form,
                           const TraceNames& names, bool mark_cycles)
    : head_(std::move(head)),
      phases_(phases),
      form_(form),
      names_(names),
      mark_cycles_(mark_cycles),
      reader_(recorder) {
  agreement_.first = kLanes;
  agreement_.name = "agreement";
}

void TraceBuilder::Begin(std::string* out) {
  form_->Begin(head_, out);
  told_dropped_ = 0;
  told_error_ns_ = 0;
  for (const auto& [track, name] : told_) form_->Track(track, name, out);
}

void TraceBuilder::Build(int64_t offset_ns, int64_t error_ns,
                         std::string* out) {
  offset_ns_ = offset_ns;
  spans_.clear();
  if (phases_ != nullptr) phases_->Take(&spans_);
  for (const PhaseSpan& span : spans_) {
    operations_[span.operation].phases.push_back(span);
  }
  for (const RecordedCall& call : reader_.Look()) {
    PutCall(call, out);
    Ended(call);
  }
  PutOperations(out);
  PutWaits(out);
  PutCounter(&bytes_, out);
  PutCounter(&under_way_, out);
  if (dropped() != told_dropped_) {
    told_dropped_ = dropped();
    form_->Counter("events dropped", "count", At(reader_.horizon_ns()),
                   static_cast<int64_t>(told_dropped_), out);
  }
  if (error_ns != told_error_ns_) {
    told_error_ns_ = error_ns;
    form_->Counter("error of the clock", "ns", At(reader_.horizon_ns()),
                   error_ns, out);
  }
}

void TraceBuilder::Ended(const RecordedCall& call) {
  bytes_.changes.emplace(call.submitted_ns, call.bytes);
  bytes_.changes.emplace(call.ended_ns, -call.bytes);
  if (call.operation != 0) {
    operations_[call.operation].calls.push_back(call);
  }
}

void TraceBuilder::PutCall(const RecordedCall& call, std::string* out) {
  if (mark_cycles_ && call.agreed_ns != 0) PutCycle(call, out);
  const std::string negotiate =
      names_.negotiate + (names_.negotiate == kHorovodTraceNames.negotiate
                              ? Capitals(NameOf(call.kind))
                              : std::string(NameOf(call.kind)));
  const std::string call_name = call.name.Get();
  const std::string source = call.source.Get();
  const std::string shape = ShapeText(call);
  const int64_t end = call.started_ns != 0 ? call.started_ns : call.ended_ns;
  std::vector<TraceSpan> spans(1);
  spans[0] = {call_name, At(call.submitted_ns), At(end), {}};
  auto& values = spans[0].values;
  const auto put = [&values](std::string_view name, int64_t value) {
    values.push_back({name, value});
  };
  put("call", static_cast<int64_t>(call.number));
  put("order", call.order);
  put("set", call.set);
  put("bytes", call.bytes);
  put("tensors", call.tensors);
  values.push_back({"first", std::string_view(shape)});
  if (Reduces(call.kind)) {
    values.push_back({"reduce", std::string_view(NameOf(call.reduce_op))});
  }
  if (call.last > 0) put("last_rank", call.last - 1);
  if (call.operation != 0) {
    put("operation", static_cast<int64_t>(call.operation));
  }
  if (call.step >= 0) put("step", call.step);
  if (!source.empty()) {
    values.push_back({"source", std::string_view(source)});
  }
  const auto code = static_cast<size_t>(call.code);
  if (code != 0 && code < kCodes.size()) {
    values.push_back({"ended", std::string_view(kCodes[code])});
  }
  const int64_t agreed = call.agreed_ns != 0 ? call.agreed_ns : end;
  spans.push_back({negotiate, At(call.submitted_ns), At(agreed), {}});
  if (agreed < end) spans.push_back({names_.queue, At(agreed), At(end), {}});
  form_->Spans(TrackFor(&agreement_, {call.submitted_ns, end}, out), spans,
               out);
}

void TraceBuilder::PutOperations(std::string* out) {
  for (auto one = operations_.begin(); one != operations_.end();) {
    const auto& [number, operation] = *one;
    const bool whole = !operation.calls.empty() && !reader_.IsOpen(number);
    // A call of the operation may still be in flight, and be read later.
    const bool without_calls =
        operation.calls.empty() && !reader_.IsOpen(number) &&
        operation.phases.back().end_ns < reader_.horizon_ns() - kForgetNs;
    if (whole) PutOperation(number, operation, out);
    one = whole || without_calls ? operations_.erase(one) : std::next(one);
  }
}

void TraceBuilder::PutOperation(uint64_t number, const Operation& one,
                                std::string* out) {
  const RecordedCall& first = one.calls.front();
  int64_t end = 0;
  int64_t bytes = 0;
  int64_t tensors = 0;
  for (const RecordedCall& call : one.calls) {
    end = std::max(end, call.ended_ns);
    bytes += call.bytes;
    tensors += call.tensors;
  }
  under_way_.changes.emplace(first.started_ns, 1);
  under_way_.changes.emplace(end, -1);
  const std::string backend = first.backend.Get();
  if (backend.empty()) return;  // no data moves
  const std::string first_name = first.name.Get();
  const std::string name = Capitals(NameOf(first.kind));
  std::vector<TraceSpan> spans(1);
  spans[0] = {name,
              At(first.started_ns),
              At(end),
              {{"operation", static_cast<int64_t>(number)},
               {"calls", static_cast<int64_t>(one.calls.size())},
               {"tensors", tensors},
               {"bytes", bytes},
               {"set", int64_t{first.set}},
               {"first", std::string_view(first_name)}}};
  const std::string exchange = Capitals(backend.c_str()) + "_" + name;
  std::vector<std::string> waits(one.phases.size());
  int64_t until = first.started_ns;
  for (size_t i = 0; i < one.phases.size(); ++i) {
    const PhaseSpan& phase = one.phases[i];
    const char* const known = names_.phases[static_cast<size_t>(phase.phase)];
    std::string_view what = exchange;
    if (known != nullptr) what = known;
    if (phase.phase == Phase::kWait) {
      waits[i] = std::string(what) + std::to_string(phase.awaited);
      what = waits[i];
    }
    const int64_t begins = std::max(phase.begin_ns, until);
    until = std::min(phase.end_ns, end);
    if (begins < until) spans.push_back({what, At(begins), At(until), {}});
  }
  form_->Spans(TrackFor(LanesOf(backend), {first.started_ns, end}, out), spans,
               out);
}

// Calls that were ordered together.
void TraceBuilder::PutCycle(const RecordedCall& call, std::string* out) {
  if (!cycles_.insert(call.agreed_ns).second) return;
  if (told_.count(kCycleTrack) == 0) Tell(kCycleTrack, "cycles", out);
  form_->Instant(kCycleTrack, names_.cycle, At(call.agreed_ns), out);
  // The calls of a batch may end seconds apart; the last few thousand are kept.
  while (cycles_.size() > 4096) cycles_.erase(cycles_.begin());
}

void TraceBuilder::PutWaits(std::string* out) {
  for (const CallReader::Step& step : reader_.TakeSteps()) {
    for (const auto& [begins, ends] : step.exposed) {
      if (told_.count(kTensorFlowTrack) == 0) {
        Tell(kTensorFlowTrack, "TensorFlow", out);
      }
      form_->Spans(kTensorFlowTrack,
                   {{"waits for collectives", At(begins), At(ends), {}}}, out);
    }
  }
}

void TraceBuilder::PutCounter(Counter* counter, std::string* out) {
  auto& changes = counter->changes;
  while (!changes.empty() && changes.begin()->first < reader_.horizon_ns()) {
    const int64_t time_ns = changes.begin()->first;
    for (; !changes.empty() && changes.begin()->first == time_ns;
         changes.erase(changes.begin())) {
      counter->value += changes.begin()->second;
    }
    form_->Counter(counter->name, counter->unit, At(time_ns), counter->value,
                   out);
  }
}

int TraceBuilder::TrackFor(Lanes* lanes, Interval taken, std::string* out) {
  size_t lane = 0;
  for (; lane < lanes->taken.size(); ++lane) {
    auto& there = lanes->taken[lane];
    // Drops spans that can overlap no later one.
    there.erase(std::remove_if(there.begin(), there.end(),
                               [this](const Interval& one) {
                                 return one.second <= reader_.settled_ns();
                               }),
                there.end());
    const bool free =
        std::none_of(there.begin(), there.end(), [&taken](const Interval& one) {
          return one.first < taken.second && taken.first < one.second;
        });
    if (free) break;
  }
  if (lane == lanes->taken.size()) lanes->taken.emplace_back();
  lanes->taken[lane].push_back(taken);
  const int track = lanes->first + static_cast<int>(lane);
  if (told_.count(track) == 0) Tell(track, lanes->name, out);
  return track;
}

TraceBuilder::Lanes* TraceBuilder::LanesOf(const std::string& backend) {
  Lanes& lanes = backends_[backend];
  if (lanes.name.empty()) {
    lanes.name = backend;
    lanes.first = static_cast<int>(backends_.size() + 1) * kLanes;
  }
  return &lanes;
}

void TraceBuilder::Tell(int track, const std::string& name, std::string* out) {
  told_[track] = name;
  form_->Track(track, name, out);
}

}  // namespace tf_hvd
