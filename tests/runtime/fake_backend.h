// A backend that moves no data.
#ifndef TF_HVD_TESTS_RUNTIME_FAKE_BACKEND_H_
#define TF_HVD_TESTS_RUNTIME_FAKE_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/execution/executor.h"

namespace tf_hvd {

// Records the calls that it gets. Operations end when they are polled, unless
// they are held.
class FakeBackend final : public Backend {
 public:
  std::string_view name() const override { return "fake"; }
  bool Serves(const OperationSpec& spec) const override {
    return spec.kind != OpKind::kBroadcast || serves_broadcast;
  }
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override {
    numbers.push_back(spec.number);
    members.insert(spec.ranks);
    calls.push_back(TextOf(spec));
    // The exchange of sizes: for an allgather, as if all ranks gave as many
    // rows as this one; for an alltoall, as if the others sent as much as they
    // get.
    if (spec.kind == OpKind::kAllgather && calls.size() == 1) {
      for (const Span& span : spec.spans) {
        std::memcpy(span.output, span.input, static_cast<size_t>(span.count));
      }
    }
    if (spec.kind == OpKind::kAlltoall && calls.size() == 1) {
      std::memcpy(spec.output, spec.input, spec.send.size() * sizeof(int64_t));
    }
    *operation = std::make_unique<Fake>(this, spec.number);
    return Status::Ok();
  }
  size_t window() const override { return room; }
  Status SetAdded(int32_t set, const std::vector<int>& ranks) override {
    calls.push_back("add " + std::to_string(set) + " of " +
                    std::to_string(ranks.size()));
    return answer;
  }
  void SetRemoved(int32_t set) override {
    calls.push_back("remove " + std::to_string(set));
  }

  std::vector<std::string> calls;
  std::vector<uint64_t> numbers;
  std::set<SetMembers> members;  // by address
  std::set<uint64_t> held;       // operations that do not end
  std::set<uint64_t> busy;       // of these, the ones that could make progress
  bool computing = false;        // the device's state, for held operations
  Status answer;
  bool in_use = false;
  int destroyed = 0;  // operations
  bool serves_broadcast = true;
  size_t room = 4;

 private:
  class Fake final : public Operation {
   public:
    Fake(FakeBackend* backend, uint64_t number)
        : backend_(backend), number_(number) {}
    ~Fake() override { ++backend_->destroyed; }
    Status Progress(int64_t, Poll* poll) override {
      poll->done = backend_->held.count(number_) == 0;
      poll->moved = backend_->busy.count(number_) > 0;
      if (!poll->done && !poll->moved) poll->awaited = 1;
      poll->computing = !poll->done && backend_->computing;
      return backend_->answer;
    }
    bool Abandon() override { return !backend_->in_use; }

   private:
    FakeBackend* const backend_;
    const uint64_t number_;
  };

  static std::string TextOf(const OperationSpec& spec) {
    std::string text;
    const auto add = [&text](const std::vector<int64_t>& numbers) {
      for (const int64_t one : numbers) text += " " + std::to_string(one);
    };
    const auto add_spans = [&] {
      // Gives a joined rank of an allgather memory for the rows that it passes
      // on.
      const bool gathers = spec.kind == OpKind::kAllgather;
      for (const Span& span : spec.spans) {
        add({span.count});
        const bool nowhere = gathers || span.output == nullptr;
        if (span.input == nullptr && nowhere) text += "z";
      }
    };
    const std::string reduction =
        std::string(NameOf(spec.reduce.op)) + " " + NameOf(spec.reduce.dtype);
    switch (spec.kind) {
      case OpKind::kAllreduce:
        text = reduction;
        add_spans();
        break;
      case OpKind::kBroadcast:
        text = "copy " + std::to_string(spec.root);
        add_spans();
        break;
      case OpKind::kAllgather:
        text = "gather";
        add_spans();
        break;
      case OpKind::kAlltoall:
        text = "all";
        add(spec.send);
        text += " to";
        add(spec.receive);
        break;
      default:
        text = "scatter " + reduction;
        add_spans();
    }
    return text;
  }
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_FAKE_BACKEND_H_
