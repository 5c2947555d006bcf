// Job: a whole job in one process. Each rank is a thread with its own Runtime,
// on loopback. A hanging test ends and names the requests that have not
// completed.
#ifndef TF_HVD_TESTS_RUNTIME_JOB_H_
#define TF_HVD_TESTS_RUNTIME_JOB_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/api/runtime.h"
#include "runtime/transport/loopback/loopback.h"
#include "tests/runtime/rank_threads.h"

namespace tf_hvd {

// The requests of all ranks that have not completed. Any thread.
class OpenRequests {
 public:
  void Add(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.insert(name);
  }
  void Remove(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.erase(open_.find(name));
  }
  std::string Describe() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::string text = "requests that have not completed:";
    for (const std::string& name : open_) text += " [" + name + "]";
    return text;
  }

 private:
  std::mutex mutex_;
  std::multiset<std::string> open_;  // guarded by mutex_
};

// How a request ended.
struct Ended {
  Status status;
  int32_t value = 0;
};

// The results of allgather and alltoall: the rows, and the number from each
// rank.
struct Gathered {
  std::vector<int64_t> first_dims;
  std::vector<char> bytes;

  template <typename T>
  std::vector<T> As() const {
    const auto* data = reinterpret_cast<const T*>(bytes.data());
    return {data, data + bytes.size() / sizeof(T)};
  }
};

// A submitted request.
struct Pending {
  std::shared_future<Ended> ended;
  std::shared_ptr<Gathered> gathered = std::make_shared<Gathered>();

  // Waits, limited by the watchdog of Job::Run.
  const Status& status() const { return ended.get().status; }
  int32_t value() const { return ended.get().value; }
  bool done() const {
    return ended.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }
};

template <typename T>
constexpr DType DTypeOf() {
  if constexpr (std::is_same_v<T, float>) return DType::kFloat32;
  if constexpr (std::is_same_v<T, double>) return DType::kFloat64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kInt32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kInt64;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kUint8;
}

struct CallOptions {
  int32_t set = kWorldSet;
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1;
  double postscale = 1;
  std::vector<int64_t> shape = {};  // empty: one dimension
  int64_t step = -1;
  bool caller_waits = false;
};

// One rank's side: makes requests of plain vectors. Vectors passed by pointer
// must exist until the request has completed. Any thread.
class Rank {
 public:
  Rank(Runtime* runtime, OpenRequests* open) : runtime_(runtime), open_(open) {}

  int rank() const { return runtime_->topology().rank; }
  int size() const { return runtime_->topology().size; }
  Runtime* runtime() const { return runtime_; }

  // In place if `output` is null.
  template <typename T>
  Pending Allreduce(const std::string& name, std::vector<T>* input,
                    const CallOptions& options = {},
                    std::vector<T>* output = nullptr) {
    Entry entry = EntryFor<T>(OpKind::kAllreduce, name, *input, options);
    entry.request.reduce_op = options.op;
    entry.request.prescale = options.prescale;
    entry.request.postscale = options.postscale;
    entry.tensors[0].output = (output == nullptr ? input : output)->data();
    return Submit(std::move(entry));
  }

  // `shape` in the options is the input's; without it the input has one
  // dimension.
  template <typename T>
  Pending Allgather(const std::string& name, const std::vector<T>& input,
                    const CallOptions& options = {}) {
    auto kept = std::make_shared<std::vector<T>>(input);
    Entry entry = EntryFor<T>(OpKind::kAllgather, name, *kept, options);
    entry.keepalive = kept;
    std::vector<int64_t>& shape = entry.request.tensors[0].shape;
    entry.rows = {std::exchange(shape[0], -1)};
    int64_t row = sizeof(T);
    for (size_t i = 1; i < shape.size(); ++i) row *= shape[i];
    return SubmitRows(std::move(entry), row);
  }

  // splits[i] rows of one element go to the i-th rank of the set.
  template <typename T>
  Pending Alltoall(const std::string& name, const std::vector<T>& input,
                   std::vector<int64_t> splits,
                   const CallOptions& options = {}) {
    auto kept = std::make_shared<std::vector<T>>(input);
    Entry entry = EntryFor<T>(OpKind::kAlltoall, name, *kept, options);
    entry.keepalive = kept;
    entry.rows = std::move(splits);
    entry.request.tensors[0].shape[0] = -1;
    return SubmitRows(std::move(entry), sizeof(T));
  }

  // `output` has room for this rank's rows.
  template <typename T>
  Pending Reducescatter(const std::string& name, const std::vector<T>& input,
                        std::vector<T>* output,
                        const CallOptions& options = {}) {
    auto kept = std::make_shared<std::vector<T>>(input);
    Entry entry = EntryFor<T>(OpKind::kReducescatter, name, *kept, options);
    entry.keepalive = kept;
    entry.request.reduce_op = options.op;
    entry.request.prescale = options.prescale;
    entry.request.postscale = options.postscale;
    entry.tensors[0].output = output->data();
    return Submit(std::move(entry));
  }

  // In place if `output` is null.
  template <typename T>
  Pending Broadcast(const std::string& name, int root, std::vector<T>* input,
                    const CallOptions& options = {},
                    std::vector<T>* output = nullptr) {
    Entry entry = EntryFor<T>(OpKind::kBroadcast, name, *input, options);
    entry.request.root = root;
    entry.tensors[0].output = (output == nullptr ? input : output)->data();
    return Submit(std::move(entry));
  }

  // Votes a local error, as a kernel does for a call that is invalid on its
  // own.
  Pending Refused(const std::string& name, const std::string& text,
                  int32_t set = kWorldSet) {
    Entry entry = Plain(OpKind::kAllreduce, name, set);
    entry.local_error = InvalidArgument(text);
    return Submit(std::move(entry));
  }

  Pending Barrier(const std::string& name, int32_t set = kWorldSet) {
    return Submit(Plain(OpKind::kBarrier, name, set));
  }
  Pending Join(int32_t set = kWorldSet) {
    return Submit(Plain(OpKind::kJoin, "join", set));
  }
  Pending AddSet(const std::string& name, std::vector<int32_t> ranks) {
    Entry entry = Plain(OpKind::kAddSet, name, kWorldSet);
    entry.request.ranks = std::move(ranks);
    return Submit(std::move(entry));
  }
  Pending RemoveSet(const std::string& name, int32_t set) {
    Entry entry = Plain(OpKind::kRemoveSet, name, kWorldSet);
    entry.request.removed_set = set;
    return Submit(std::move(entry));
  }

  Pending Submit(Entry entry) {
    const std::string label =
        "rank " + std::to_string(rank()) + ": " + entry.name;
    open_->Add(label);
    auto promise = std::make_shared<std::promise<Ended>>();
    Pending pending;
    pending.ended = promise->get_future().share();
    entry.done = Completion(
        [promise, label, open = open_](const Status& status, int32_t value) {
          open->Remove(label);
          promise->set_value({status, value});  // throws when called twice
        });
    runtime_->Submit(std::move(entry));
    return pending;
  }

  static Entry Plain(OpKind kind, const std::string& name, int32_t set) {
    Entry entry;
    entry.set = set;
    entry.name = name;
    entry.request.kind = kind;
    return entry;
  }

 private:
  // Submits an entry that allocates rows of `row_bytes` bytes.
  Pending SubmitRows(Entry entry, int64_t row_bytes) {
    auto gathered = std::make_shared<Gathered>();
    entry.allocate = [gathered, row_bytes](size_t,
                                           const std::vector<int64_t>& dims,
                                           void** output) {
      gathered->first_dims = dims;
      int64_t bytes = 0;
      for (const int64_t rows : dims) bytes += rows * row_bytes;
      gathered->bytes.resize(static_cast<size_t>(bytes));
      *output = gathered->bytes.data();
      return Status::Ok();
    };
    Pending pending = Submit(std::move(entry));
    pending.gathered = std::move(gathered);
    return pending;
  }

  template <typename T>
  static Entry EntryFor(OpKind kind, const std::string& name,
                        const std::vector<T>& input,
                        const CallOptions& options) {
    Entry entry = Plain(kind, name, options.set);
    entry.step = options.step;
    entry.caller_waits = options.caller_waits;
    const auto count = static_cast<int64_t>(input.size());
    entry.request.tensors.push_back(
        {DTypeOf<T>(),
         options.shape.empty() ? std::vector<int64_t>{count} : options.shape});
    entry.tensors.push_back({input.data(), nullptr, count});
    return entry;
  }

  Runtime* const runtime_;
  OpenRequests* const open_;
};

class Job {
 public:
  explicit Job(std::vector<int> nodes, const Config& config = Config(),
               int fan_out = kFanOut, size_t edge_bytes = 64 * 1024,
               std::function<GpuAccess(int rank)> gpu = nullptr)
      : config_(config) {
    LoopbackOptions options;
    options.gpu = std::move(gpu);
    options.nodes = std::move(nodes);
    options.fan_out = fan_out;
    options.edge_bytes = edge_bytes;
    for (auto& world : MakeLoopback(options)) {
      worlds_.push_back(world.get());
      unused_.push_back(std::move(world));
    }
    runtimes_.resize(worlds_.size());
  }

  // Ranks passed here before the first Run are never started and never answer,
  // like stopped processes. Run starts all others.
  void NeverStart(int rank) { absent_.insert(rank); }

  int size() const { return static_cast<int>(worlds_.size()); }
  World* world(int rank) { return worlds_[static_cast<size_t>(rank)]; }
  std::unique_ptr<Runtime>& runtime(int rank) {
    return runtimes_[static_cast<size_t>(rank)];
  }
  Rank rank(int rank) { return Rank(runtime(rank).get(), &open_); }

  // Calls fn for each rank on a separate thread, and returns when all have
  // returned.
  void Run(const std::function<void(Rank&)>& fn) {
    for (int number = 0; number < size(); ++number) Start(number);
    Watchdog watchdog([this] { return open_.Describe(); },
                      std::chrono::seconds(250));
    RunRanks(size(), [&](int number) {
      if (absent_.count(number) > 0) return;
      Rank self = rank(number);
      fn(self);
    });
  }

  // All ranks leave at the same time, as at the end of a program.
  ~Job() {
    Watchdog watchdog([this] { return "shutdown; " + open_.Describe(); },
                      std::chrono::seconds(250));
    RunRanks(size(), [this](int number) { runtime(number).reset(); });
  }

 private:
  void Start(int rank) {
    std::unique_ptr<World>& world = unused_[static_cast<size_t>(rank)];
    if (world == nullptr || absent_.count(rank) > 0) return;
    runtime(rank) = MakeRuntime(config_, std::move(world));
  }

  const Config config_;
  OpenRequests open_;
  std::set<int> absent_;
  std::vector<World*> worlds_;
  std::vector<std::unique_ptr<World>> unused_;  // of runtimes not started
  std::vector<std::unique_ptr<Runtime>> runtimes_;
};

// The trees that most tests run on.
inline std::vector<std::vector<int>> AllNodes() {
  return {{1}, {2}, {1, 1}, {3}, {5}, {4}, {2, 2}, {1, 3}, {1, 1, 1, 1, 1}};
}

// Base class of the suites that run on each of AllNodes(), and their names.
using OnEachTree = ::testing::TestWithParam<std::vector<int>>;

inline std::string TreeName(
    const ::testing::TestParamInfo<std::vector<int>>& tree) {
  std::string text = "nodes";
  for (const int ranks : tree.param) text += "_" + std::to_string(ranks);
  return text;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_JOB_H_
