// Measures the flight recorder's cost per collective: the time to record all
// events of one, minus its clock readings, which the timeline and the stall
// report also need.
//
//   bazel run -c opt //benchmarks:recorder_cost

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "runtime/events/recorder.h"
#include "runtime/request/entry.h"

namespace tf_hvd {
namespace {

constexpr int kCalls = 100'000;
constexpr int kTurns = 31;
// Submitted, agreed, started, ended.
constexpr int kClocks = 4;

double ClocksNs() {
  const int64_t begin_ns = NowNs();
  int64_t sum = 0;
  for (int i = 0; i < kCalls * kClocks; ++i) sum += NowNs();
  const int64_t end_ns = NowNs();
  // Using the sum keeps the loop from being optimised away.
  return sum == 0 ? 0 : static_cast<double>(end_ns - begin_ns) / kCalls;
}

double CallsNs(Recorder* recorder, const Entry& call) {
  const int64_t begin_ns = NowNs();
  for (int i = 1; i <= kCalls; ++i) {
    CallRecord record = recorder->Add(call);
    record.Agreed(i, 0, NowNs());
    record.Started(static_cast<uint64_t>(i), NowNs());
    record.MovesBy("shm");
    record.Moved(0, 1);
    record.Ended(Status::Ok());
  }
  return static_cast<double>(NowNs() - begin_ns) / kCalls;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Run() {
  std::string why;
  const auto recorder = Recorder::Make({}, {}, &why);
  if (recorder == nullptr) {
    std::fprintf(stderr, "recorder_cost: %s\n", why.c_str());
    return 1;
  }
  Entry call;
  call.name =
      "gradient_tape_model_dense_1_MatMul_grad_MatMul_1_HorovodAllreduce_0";
  call.source = "examples/train.py:88";
  call.request.tensors = {{DType::kFloat32, {1024, 1024}}};
  std::vector<double> clocks;
  std::vector<double> calls;
  for (int turn = 0; turn < kTurns; ++turn) {
    clocks.push_back(ClocksNs());
    calls.push_back(CallsNs(recorder.get(), call));
  }
  std::printf("a call %.0f ns, of which %d readings of the clock %.0f ns\n",
              Median(calls), kClocks, Median(clocks));
  return 0;
}

}  // namespace
}  // namespace tf_hvd

int main() { return tf_hvd::Run(); }
