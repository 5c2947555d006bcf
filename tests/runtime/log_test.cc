#include "base/log.h"

#include <gtest/gtest.h>

#include <string>

namespace tf_hvd {
namespace {

TEST(Log, ParsesEachLevel) {
  const std::pair<const char*, LogLevel> rows[] = {
      {"trace", LogLevel::kTrace}, {"debug", LogLevel::kDebug},
      {"info", LogLevel::kInfo},   {"warning", LogLevel::kWarning},
      {"error", LogLevel::kError}, {"fatal", LogLevel::kFatal},
  };
  for (const auto& [word, level] : rows) {
    LogLevel parsed = LogLevel::kTrace;
    EXPECT_TRUE(ParseLogLevel(word, &parsed)) << word;
    EXPECT_EQ(parsed, level) << word;
  }
}

TEST(Log, RejectsOtherWordsAndKeepsTheLevel) {
  for (const char* word : {"", "Warning", "warn", "warning ", "3"}) {
    LogLevel level = LogLevel::kInfo;
    EXPECT_FALSE(ParseLogLevel(word, &level)) << word;
    EXPECT_EQ(level, LogLevel::kInfo);
  }
}

TEST(Log, WritesOneLine) {
  testing::internal::CaptureStderr();
  WriteLog(LogLevel::kWarning, "rank 1 (b)", "stall: 'g' waited");
  WriteLog(LogLevel::kError, "rank 0 (a)", "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "tf_hvd warning, rank 1 (b): stall: 'g' waited\n"
            "tf_hvd error, rank 0 (a): \n");
}

}  // namespace
}  // namespace tf_hvd
