// The program's current line, from its own handler.
#include "base/main_thread.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/clock.h"

namespace tf_hvd {
namespace {

const std::vector<std::string> kOthers = {"/site-packages/", "/lib/python3."};

TEST(MainThreadTest, PlaceIsTheProgramsInnermostLine) {
  const std::string frames =
      "Current thread 0x00007f2b40a5e740 (most recent call first):\n"
      "  File \"<frozen runpy>\", line 198 in _run_module_as_main\n"
      "  File \"/usr/lib/python3.11/ssl.py\", line 1166 in read\n"
      "  File \"/v/site-packages/keras/fit.py\", line 3 in fit\n"
      "  File \"/data/train.py\", line 12 in evaluate\n"
      "  File \"/data/train.py\", line 40 in <module>\n";
  EXPECT_EQ(PlaceIn(frames, kOthers, ""),
            "/data/train.py, line 12, in evaluate");
  EXPECT_EQ(PlaceIn(frames, kOthers, "/data/"),
            "train.py, line 12, in evaluate");
}

TEST(MainThreadTest, PlaceIsTheInnermostLineWithoutProgramFrames) {
  EXPECT_EQ(PlaceIn("  File \"/v/site-packages/tool.py\", line 5 in run\n"
                    "  File \"<string>\", line 1 in <module>\n",
                    kOthers, ""),
            "/v/site-packages/tool.py, line 5, in run");
  EXPECT_EQ(PlaceIn("", kOthers, ""), "");
  EXPECT_EQ(PlaceIn("  <no Python frame>\n", kOthers, ""), "");
  // A truncated answer.
  EXPECT_EQ(PlaceIn("  File \"/data/train.p", kOthers, ""), "");
  EXPECT_EQ(PlaceIn("  File \"/data/train.py\", line 12 in ", kOthers, ""), "");
}

TEST(MainThreadTest, LongNamesAreShortened) {
  const std::string place =
      PlaceIn("  File \"/" + std::string(500, 'd') + "/train.py\", line 7 in " +
                  std::string(500, 'f') + "\n",
              kOthers, "");
  EXPECT_LT(place.size(), 300u);
  EXPECT_NE(place.find("d/train.py, line 7, in fff"), std::string::npos);
  EXPECT_EQ(place.rfind("...ddd", 0), 0u);
}

int frames_file = -1;

void WriteFrames(int) {
  constexpr char kFrames[] = "  File \"/train.py\", line 1 in main\n";
  EXPECT_GT(write(frames_file, kFrames, std::strlen(kFrames)), 0);
}

void Install(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(SIGRTMAX - 1, &action, nullptr);
}

class MainThreadFixture : public testing::Test {
 protected:
  MainThreadFixture() {
    frames_file = memfd_create("frames", MFD_CLOEXEC);
    Install(WriteFrames);
  }
  ~MainThreadFixture() override {
    Install(SIG_IGN);
    close(frames_file);
  }

  // A signal to this thread has arrived when the call returns.
  static void WaitUntilNextRequest() {
    for (const int64_t end_ns = NowNs() + 200 * kMs; NowNs() < end_ns;) {
    }
  }
};

TEST_F(MainThreadFixture, AnswersEachRequest) {
  MainThread main_thread(SIGRTMAX - 1, frames_file, kOthers);
  EXPECT_EQ(main_thread.Place(), "");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(main_thread.Ask());
    EXPECT_EQ(main_thread.Place(), "/train.py, line 1, in main");
    WaitUntilNextRequest();
  }
  // Each answer overwrites the previous one.
  EXPECT_EQ(lseek(frames_file, 0, SEEK_END), 35);
}

// A thread that blocks signals would get them all afterwards.
TEST_F(MainThreadFixture, SendsOneSignalUntilAnswered) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMAX - 1);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  MainThread main_thread(SIGRTMAX - 1, frames_file, kOthers);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(main_thread.Ask());
    EXPECT_EQ(main_thread.Place(), "");
    WaitUntilNextRequest();
  }
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  EXPECT_EQ(main_thread.Place(), "/train.py, line 1, in main");
  EXPECT_EQ(lseek(frames_file, 0, SEEK_END), 35);
}

// Without the handler the signal would end the process.
TEST_F(MainThreadFixture, SendsNoSignalIfTheHandlerWasReplaced) {
  MainThread main_thread(SIGRTMAX - 1, frames_file, kOthers);
  Install(SIG_DFL);
  EXPECT_FALSE(main_thread.Ask());
  Install([](int) { FAIL() << "the program's own signal"; });
  EXPECT_FALSE(main_thread.Ask());
}

// The number may have been reused for a file of the program.
TEST_F(MainThreadFixture, SendsNoSignalIfTheFileIsClosed) {
  MainThread main_thread(SIGRTMAX - 1, frames_file, kOthers);
  const int other = memfd_create("other", MFD_CLOEXEC);
  ASSERT_EQ(dup2(other, frames_file), frames_file);
  EXPECT_FALSE(main_thread.Ask());
  EXPECT_EQ(lseek(other, 0, SEEK_END), 0);
  close(other);
}

}  // namespace
}  // namespace tf_hvd
