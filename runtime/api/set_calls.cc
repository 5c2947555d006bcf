#include "runtime/api/set_calls.h"

#include <future>
#include <memory>
#include <string>
#include <utility>

namespace tf_hvd {
namespace {

constexpr char kAddName[] = "add_process_set";
constexpr char kRemoveName[] = "remove_process_set";
constexpr char kInitName[] = "init";

Entry EntryOf(OpKind kind, const char* name) {
  Entry entry;
  entry.name = name;
  entry.request.kind = kind;
  return entry;
}

Status SubmitAndWait(Runtime* runtime, Entry entry, int32_t* value = nullptr) {
  // Shared: the completion may still be returning after the waiter has left.
  auto ended = std::make_shared<std::promise<std::pair<Status, int32_t>>>();
  auto future = ended->get_future();
  entry.done = Completion([ended](const Status& status, int32_t result) {
    ended->set_value({status, result});
  });
  runtime->Submit(std::move(entry));
  const auto [status, result] = future.get();
  if (value != nullptr) *value = result;
  return status;
}

std::string ListOf(const std::vector<int32_t>& ranks) {
  std::string text = "[";
  for (const int32_t rank : ranks) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(rank);
  }
  return text + "]";
}

// Describes what is wrong with a set of `ranks`; empty if it is valid.
std::string WrongRanks(const Runtime& runtime,
                       const std::vector<int32_t>& ranks) {
  if (ranks.empty()) return "a process set needs at least one rank";
  const int last = runtime.topology().size - 1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] > last) {
      return "the job has no rank " + std::to_string(ranks[i]) +
             "; its ranks are 0 to " + std::to_string(last);
    }
    if (i > 0 && ranks[i] == ranks[i - 1]) {
      return "rank " + std::to_string(ranks[i]) +
             " is listed more than once; list each rank once";
    }
  }
  const int32_t same = runtime.FindSet({ranks.begin(), ranks.end()});
  if (same <= kWorldSet) return "";
  return "process set " + std::to_string(same) +
         " has the same ranks; use that set, or remove it first";
}

}  // namespace

Status AgreeOnSets(Runtime* runtime, std::vector<int32_t> sets) {
  Entry entry = EntryOf(OpKind::kBarrier, kInitName);
  entry.request.ranks = std::move(sets);
  return SubmitAndWait(runtime, std::move(entry));
}

Status AddSet(Runtime* runtime, std::vector<int32_t> ranks, int32_t* number) {
  Entry entry = EntryOf(OpKind::kAddSet, kAddName);
  const std::string wrong = WrongRanks(*runtime, ranks);
  if (!wrong.empty()) {
    entry.local_error = InvalidArgument(std::string(kAddName) + "(" +
                                        ListOf(ranks) + "): " + wrong);
  }
  entry.request.ranks = std::move(ranks);
  return SubmitAndWait(runtime, std::move(entry), number);
}

Status RemoveSet(Runtime* runtime, int32_t number) {
  Entry entry = EntryOf(OpKind::kRemoveSet, kRemoveName);
  entry.request.removed_set = number;
  return SubmitAndWait(runtime, std::move(entry));
}

Status GatherRanks(Runtime* runtime, const std::vector<int32_t>& mine,
                   std::vector<std::vector<int32_t>>* all) {
  struct Result {
    std::vector<int32_t> sent;
    std::vector<int32_t> data;
    std::vector<int64_t> counts;
  };
  // Kept alive by the entry: after an abort the transport may outlive this
  // call.
  const auto result = std::make_shared<Result>();
  result->sent = mine;
  // Uses the name of the call that this prepares: a rank that makes that call
  // without this one then gets an error.
  Entry entry = EntryOf(OpKind::kAllgather, kAddName);
  const auto count = static_cast<int64_t>(mine.size());
  entry.request.tensors = {{DType::kInt32, {-1}}};
  entry.tensors = {{result->sent.data(), nullptr, count}};
  entry.rows = {count};
  entry.keepalive = result;
  entry.allocate = [result](size_t, const std::vector<int64_t>& counts,
                            void** output) {
    result->counts = counts;
    int64_t sum = 0;
    for (const int64_t one : counts) sum += one;
    result->data.resize(static_cast<size_t>(sum));
    *output = result->data.data();
    return Status::Ok();
  };
  TF_HVD_RETURN_IF_ERROR(SubmitAndWait(runtime, std::move(entry)));
  auto next = result->data.begin();
  for (const int64_t one : result->counts) {
    all->emplace_back(next, next + one);
    next += one;
  }
  return Status::Ok();
}

}  // namespace tf_hvd
