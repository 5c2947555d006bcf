#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/request/entry.h"

namespace tf_hvd {
namespace {

struct Fired {
  std::vector<std::pair<Status, int32_t>> calls;
  Completion Make() {
    return Completion([this](const Status& status, int32_t value) {
      calls.emplace_back(status, value);
    });
  }
};

TEST(Completion, FiresOnce) {
  Fired fired;
  {
    Completion done = fired.Make();
    EXPECT_TRUE(done.pending());
    EXPECT_TRUE(fired.calls.empty());
    done.Fire(Status::Ok(), 7);
    EXPECT_FALSE(done.pending());
    done.Fire(Internal("second"), 8);
  }
  ASSERT_EQ(fired.calls.size(), 1u);
  EXPECT_TRUE(fired.calls[0].first.ok());
  EXPECT_EQ(fired.calls[0].second, 7);
}

TEST(Completion, DroppedIsAnError) {
  Fired fired;
  { Completion done = fired.Make(); }
  ASSERT_EQ(fired.calls.size(), 1u);
  EXPECT_EQ(fired.calls[0].first.code(), StatusCode::kInternal);
  EXPECT_NE(fired.calls[0].first.message().find("dropped"), std::string::npos);
}

TEST(Completion, AssignmentDropsTheOldPromise) {
  Fired old_one;
  Fired new_one;
  Completion done = old_one.Make();
  done = new_one.Make();
  ASSERT_EQ(old_one.calls.size(), 1u);
  EXPECT_EQ(old_one.calls[0].first.code(), StatusCode::kInternal);
  EXPECT_TRUE(new_one.calls.empty());
  done.Fire(Status::Ok());
  EXPECT_EQ(new_one.calls.size(), 1u);
}

// The callback may destroy the object that holds the completion.
TEST(Completion, CallbackMayDestroyItsHolder) {
  std::optional<Completion> holder;
  int calls = 0;
  holder.emplace([&](const Status&, int32_t) {
    ++calls;
    holder.reset();
  });
  holder->Fire(Status::Ok());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tf_hvd
