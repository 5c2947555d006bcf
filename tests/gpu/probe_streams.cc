// The cost of querying a stream's progress, and of being notified.
#include <atomic>
#include <thread>
#include <vector>

#include "tests/gpu/device_probes.h"

namespace tf_hvd {
namespace {

constexpr std::chrono::seconds kBusy{20};
constexpr std::chrono::microseconds kRarely{50};
// Delay of a kernel that waits for the host: it has started by then.
constexpr std::chrono::microseconds kBegun{200};

using Query = std::function<void()>;

double CostOf(const Query& query, int repetitions) {
  const auto start = ProbeClock::now();
  for (int i = 0; i < repetitions; ++i) query();
  return MicrosecondsSince(start) / repetitions;
}

// Launches while another thread calls `query` repeatedly, if there is one.
Status LaunchBeside(const ProbeSide& side, CudaStream stream,
                    const Query& query, const std::string& name,
                    Figures* figures) {
  std::atomic<bool> begun{query == nullptr};
  std::atomic<bool> ends{false};
  Status asked;
  std::thread asking;
  if (query != nullptr) {
    asking = std::thread([&] {
      asked = side.Repeat(
          [&] {
            query();
            begun = true;
          },
          [&] { return ends.load(); });
      begun = true;
    });
  }
  while (!begun) std::this_thread::yield();
  std::vector<double> took;
  Status status;
  for (int i = 0; i < side.repetitions() && status.ok(); ++i) {
    const auto start = ProbeClock::now();
    status = side.device()->Within([&] { return side.LaunchNothing(stream); });
    took.push_back(MicrosecondsSince(start));
  }
  ends = true;
  if (asking.joinable()) asking.join();
  TF_HVD_RETURN_IF_ERROR(status);
  TF_HVD_RETURN_IF_ERROR(asked);
  figures->Add(name + "_us", Percentile(took, 50));
  figures->Add(name + "_99th_us", Percentile(took, 99));
  std::shared_ptr<GpuEvent> launched;
  TF_HVD_RETURN_IF_ERROR(side.device()->Record(stream, &launched));
  return side.Await(*launched);
}

// The flag is set in any case before the stream is destroyed.
class Busy {
 public:
  explicit Busy(const ProbeSide& side) : side_(side) {}
  ~Busy() {
    if (event_ == nullptr) return;
    flag_.Set(true);
    static_cast<void>(side_.Await(*event_));
  }

  Status Begin() {
    TF_HVD_RETURN_IF_ERROR(side_.device()->NewStream(&stream_));
    TF_HVD_RETURN_IF_ERROR(flag_.Open(side_.device()));
    TF_HVD_RETURN_IF_ERROR(side_.Spin(stream_, flag_, kBusy));
    return side_.device()->Record(stream_, &event_);
  }
  CudaStream stream() const { return stream_; }
  const GpuEvent& event() const { return *event_; }

 private:
  const ProbeSide& side_;
  Flag flag_;
  CudaStream stream_ = nullptr;
  std::shared_ptr<GpuEvent> event_;
};

// The time at which a host function was called.
struct Called {
  ProbeClock::time_point at;
  std::atomic<bool> was{false};

  void Now() {
    at = ProbeClock::now();
    was = true;
  }
};

// Time from setting the flag until polling sees the kernel's end.
Status PollOnce(const ProbeSide& side, CudaStream stream, const Flag& flag,
                double* took) {
  flag.Set(false);
  std::shared_ptr<GpuEvent> ended;
  TF_HVD_RETURN_IF_ERROR(side.Spin(stream, flag, kBusy));
  TF_HVD_RETURN_IF_ERROR(side.device()->Record(stream, &ended));
  std::this_thread::sleep_for(kBegun);
  const auto start = ProbeClock::now();
  flag.Set(true);
  TF_HVD_RETURN_IF_ERROR(side.Await(*ended));
  *took = MicrosecondsSince(start);
  return Status::Ok();
}

// The same for a host function, and the cost of enqueuing one.
Status CallOnce(const ProbeSide& side, CudaStream stream, const Flag& flag,
                double* took, double* asked) {
  flag.Set(false);
  Called called;
  std::shared_ptr<GpuEvent> ended;
  TF_HVD_RETURN_IF_ERROR(side.Spin(stream, flag, kBusy));
  auto start = ProbeClock::now();
  TF_HVD_RETURN_IF_ERROR(side.device()->CallWhenDone(
      stream,
      {[](void* data) { static_cast<Called*>(data)->Now(); }, &called}));
  *asked = MicrosecondsSince(start);
  TF_HVD_RETURN_IF_ERROR(side.device()->Record(stream, &ended));
  std::this_thread::sleep_for(kBegun);
  start = ProbeClock::now();
  flag.Set(true);
  // Calls no driver function meanwhile, for as long as a GPU may take.
  while (!called.was && MicrosecondsSince(start) < 1e4) {
  }
  TF_HVD_RETURN_IF_ERROR(side.Await(*ended));
  *took = std::chrono::duration<double, std::micro>(called.at - start).count();
  return Status::Ok();
}

}  // namespace

Status ProbeQueries(const ProbeSide& side, Figures* figures) {
  Busy busy(side);
  TF_HVD_RETURN_IF_ERROR(busy.Begin());
  std::shared_ptr<GpuEvent> fired;
  TF_HVD_RETURN_IF_ERROR(side.device()->Record(side.side()->stream(), &fired));
  TF_HVD_RETURN_IF_ERROR(side.Await(*fired));
  const auto event_query = [&](const GpuEvent& event) {
    return [&side, &event] {
      static_cast<void>(side.cuda().event_query(event.get()));
    };
  };
  const auto query_event = event_query(busy.event());
  const int many = side.repetitions() * 10;
  TF_HVD_RETURN_IF_ERROR(side.device()->Within([&] {
    figures->Add("event_query_us", CostOf(query_event, many));
    figures->Add("event_query_fired_us", CostOf(event_query(*fired), many));
    return Status::Ok();
  }));
  // As the runtime queries: the context is pushed and popped each time.
  figures->Add("has_fired_us", CostOf(
                                   [&] {
                                     bool yes = false;
                                     static_cast<void>(side.device()->HasFired(
                                         busy.event(), &yes));
                                   },
                                   many));
  CudaStream free = nullptr;
  TF_HVD_RETURN_IF_ERROR(side.device()->NewStream(&free));
  TF_HVD_RETURN_IF_ERROR(
      LaunchBeside(side, free, nullptr, "launch_alone", figures));
  TF_HVD_RETURN_IF_ERROR(LaunchBeside(side, free, query_event,
                                      "launch_beside_event_queries", figures));
  const auto rarely = [&query_event] {
    query_event();
    std::this_thread::sleep_for(kRarely);
  };
  TF_HVD_RETURN_IF_ERROR(
      LaunchBeside(side, free, rarely, "launch_beside_rare_queries", figures));
  if (side.more().stream_query == nullptr) {
    figures->NotHere("the driver has no cuStreamQuery");
    return Status::Ok();
  }
  const auto query_stream = [&] {
    static_cast<void>(side.more().stream_query(busy.stream()));
  };
  TF_HVD_RETURN_IF_ERROR(side.device()->Within([&] {
    figures->Add("stream_query_us", CostOf(query_stream, many));
    return Status::Ok();
  }));
  return LaunchBeside(side, free, query_stream, "launch_beside_stream_queries",
                      figures);
}

Status ProbeHostFunction(const ProbeSide& side, Figures* figures) {
  CudaStream stream = nullptr;
  Flag flag;
  TF_HVD_RETURN_IF_ERROR(side.device()->NewStream(&stream));
  TF_HVD_RETURN_IF_ERROR(flag.Open(side.device()));
  std::vector<double> polled;
  for (int i = 0; i < side.repetitions(); ++i) {
    double took = 0;
    TF_HVD_RETURN_IF_ERROR(PollOnce(side, stream, flag, &took));
    polled.push_back(took);
  }
  figures->Add("polled_us", Percentile(polled, 50));
  figures->Add("polled_99th_us", Percentile(polled, 99));
  std::vector<double> called;
  std::vector<double> asked;
  for (int i = 0; i < side.repetitions(); ++i) {
    double took = 0;
    double ask = 0;
    TF_HVD_RETURN_IF_ERROR(CallOnce(side, stream, flag, &took, &ask));
    called.push_back(took);
    asked.push_back(ask);
  }
  figures->Add("called_us", Percentile(called, 50));
  figures->Add("called_99th_us", Percentile(called, 99));
  figures->Add("ask_us", Percentile(asked, 50));
  return Status::Ok();
}

}  // namespace tf_hvd
