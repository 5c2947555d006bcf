// Ranks that disagree, calls that are wrong on one rank, names used twice: the
// same text everywhere, and what comes next works.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

class DisagreementTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, DisagreementTest,
                         ::testing::ValuesIn(AllNodes()), TreeName);

void ExpectNextWorks(Rank* self, const std::string& name) {
  std::vector<int32_t> data = {self->rank(), 1};
  const Pending next = self->Allreduce(name, &data);
  ASSERT_TRUE(next.status().ok()) << next.status().message();
  const int size = self->size();
  EXPECT_EQ(data, (std::vector<int32_t>{size * (size - 1) / 2, size}));
}

// What the odd rank does otherwise than all others, and the rule that is told.
struct Case {
  const char* name;
  std::function<Pending(Rank*, bool odd, std::vector<float>*)> call;
  const char* odd_value;
  const char* rule;
};

// One of each kind of request. That any other difference is noticed, and what
// is said of it, is in request_test.cc and mismatch_test.cc.
std::vector<Case> Cases() {
  const auto group = [](Rank* self, bool odd, std::vector<float>* data) {
    Entry entry = Rank::Plain(OpKind::kAllreduce, "x", kWorldSet);
    entry.request.tensors = {{DType::kFloat32, {2}, "w"},
                             {DType::kFloat32, {3}, "b"}};
    if (odd) std::swap(entry.request.tensors[0], entry.request.tensors[1]);
    for (const TensorSpec& tensor : entry.request.tensors) {
      entry.tensors.push_back({data->data(), data->data(), tensor.shape[0]});
    }
    return self->Submit(std::move(entry));
  };
  const auto scatter = [](Rank* self, bool odd, std::vector<float>* data) {
    Entry entry = Rank::Plain(OpKind::kReducescatter, "x", kWorldSet);
    entry.request.tensors.push_back({DType::kFloat32, {6}});
    if (odd) entry.request.tensors[0].shape = {3, 2};
    entry.tensors.push_back({data->data(), nullptr, 6});
    return self->Submit(std::move(entry));
  };
  const auto scale = [](Rank* self, bool odd, std::vector<float>* data) {
    CallOptions options;
    options.postscale = odd ? 0.5 : 1;
    return self->Allreduce("x", data, options);
  };
  const auto root = [](Rank* self, bool odd, std::vector<float>* data) {
    return self->Broadcast("x", odd ? 1 : 0, data);
  };
  const auto kind = [](Rank* self, bool odd, std::vector<float>* data) {
    return odd ? self->Allgather("x", *data) : self->Allreduce("x", data);
  };
  const auto row = [](Rank* self, bool odd, std::vector<float>* data) {
    CallOptions options;
    options.shape =
        odd ? std::vector<int64_t>{3, 2} : std::vector<int64_t>{2, 3};
    return self->Allgather("x", *data, options);
  };
  return {
      {"group", group, "'b' as tensor 0",
       "a group must have the same tensors in the same order on all ranks"},
      {"scatter", scatter, "float32[3,2]",
       "the shapes must be equal on all ranks"},
      {"scale", scale, "prescale 1 and postscale 0.5",
       "the scales must be equal on all ranks"},
      {"root", root, "root rank 1", "the root must be equal on all ranks"},
      {"kind", kind, "allgather", "the operations must be equal on all ranks"},
      {"row", row, "float32[?,2]",
       "all dimensions but the first must be equal on all ranks"},
  };
}

TEST_P(DisagreementTest, SameTextOnAllRanksAndTheNextOneWorks) {
  Job job(GetParam());
  if (job.size() == 1) return;
  for (const Case& what : Cases()) {
    SCOPED_TRACE(what.name);
    std::vector<std::string> texts(static_cast<size_t>(job.size()));
    job.Run([&](Rank& self) {
      std::vector<float> data(6, 1);
      const bool odd = self.rank() == self.size() - 1;
      const Status status = what.call(&self, odd, &data).status();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_EQ(data, std::vector<float>(6, 1));  // nothing was run
      texts[static_cast<size_t>(self.rank())] = status.message();
      ExpectNextWorks(&self, "x");
    });
    for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
    const std::string last = "rank " + std::to_string(job.size() - 1);
    for (const std::string& part :
         {std::string("'x'"), std::string("rank 0 has"),
          last + " has " + what.odd_value, std::string(what.rule)}) {
      EXPECT_NE(texts[0].find(part), std::string::npos) << texts[0];
    }
  }
}

// The first two that differ, of any number: the lowest rank and the lowest that
// differs from it.
TEST_P(DisagreementTest, NamesTheLowestRanks) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    std::vector<float> data(static_cast<size_t>(self.rank()) + 1, 1);
    const Status status = self.Allreduce("x", &data).status();
    EXPECT_EQ(status.message(),
              "mismatch in allreduce 'x': rank 0 has float32[1], rank 1 has "
              "float32[2]; the shapes must be equal on all ranks");
    ExpectNextWorks(&self, "x");
  });
}

TEST_P(DisagreementTest, RefusalOfOneRankFailsAll) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    for (int round = 0; round < 5; ++round) {
      const int culprit = round % self.size();
      std::vector<float> data = {1};
      if (self.rank() == culprit) {
        const Status status = self.Refused("x", "this is a scalar").status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
        EXPECT_EQ(status.message(), "this is a scalar");
      } else {
        const Status status = self.Allreduce("x", &data).status();
        EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
        EXPECT_EQ(status.message(),
                  "rank " + std::to_string(culprit) + ": this is a scalar");
      }
      ExpectNextWorks(&self, "y");
    }
  });
}

// The last rank's step failed after this name, and is made again there. Also
// when the name travels as a number.
TEST_P(DisagreementTest, StepRetriedOnOneRankFailsOnAll) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    const int last = self.size() - 1;
    for (int64_t step = 0; step < 6; ++step) {
      const bool retries = step == 1 || step == 4;
      std::vector<int32_t> data = {1};
      CallOptions options;
      options.step = retries && self.rank() == last ? step - 1 : step;
      const Status status = self.Allreduce("x", &data, options).status();
      if (retries) {
        EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
        const std::string text =
            "mismatch in allreduce 'x': rank 0 is at step " +
            std::to_string(step) + ", rank " + std::to_string(last) +
            " is at step " + std::to_string(step - 1) + "; all ranks must ";
        EXPECT_EQ(status.message().substr(0, text.size()), text);
      } else {
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(data[0], self.size());
      }
    }
    ExpectNextWorks(&self, "x");
  });
}

// Rank 0 submits a name twice. Its second call fails at once; the others'
// second one fails with it instead of waiting for a third.
TEST_P(DisagreementTest, DuplicateName) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    std::vector<int32_t> first = {1};
    std::vector<int32_t> second = {2};
    if (self.rank() == 0) {
      const Pending one = self.Allreduce("x", &first);
      const Pending two = self.Allreduce("x", &second);
      EXPECT_EQ(two.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(two.status().message().find("duplicate name: 'x'"),
                std::string::npos);
      EXPECT_TRUE(self.Barrier("both submitted").status().ok());
      EXPECT_TRUE(one.status().ok());
    } else {
      // Earlier, rank 0's first might be complete before its second.
      EXPECT_TRUE(self.Barrier("both submitted").status().ok());
      EXPECT_TRUE(self.Allreduce("x", &first).status().ok());
      const Status status = self.Allreduce("x", &second).status();
      EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
      EXPECT_NE(status.message().find("rank 0: duplicate name: 'x'"),
                std::string::npos);
    }
    EXPECT_EQ(first[0], self.size());
    EXPECT_EQ(second[0], 2);
    ExpectNextWorks(&self, "x");
  });
}

// Errors in the middle of much else harm nothing else.
TEST_P(DisagreementTest, OneOfManyFails) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    for (int round = 0; round < 10; ++round) {
      std::vector<std::vector<int64_t>> data(40);
      std::vector<Pending> pending;
      for (size_t i = 0; i < data.size(); ++i) {
        const bool wrong = i % 10 == 3 && self.rank() == self.size() - 1;
        data[i].assign(wrong ? 7 : 5, static_cast<int64_t>(i));
        pending.push_back(
            self.Allreduce(std::string("g") + std::to_string(i), &data[i]));
      }
      for (size_t i = 0; i < data.size(); ++i) {
        const bool fails = i % 10 == 3;
        EXPECT_EQ(pending[i].status().ok(), !fails);
        if (fails) continue;
        EXPECT_EQ(data[i], std::vector<int64_t>(
                               5, static_cast<int64_t>(i) * self.size()));
      }
    }
  });
}

}  // namespace
}  // namespace tf_hvd
