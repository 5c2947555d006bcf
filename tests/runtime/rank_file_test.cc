#include "runtime/events/rank_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace tf_hvd {
namespace {

namespace fs = std::filesystem;

class PutFileTest : public testing::Test {
 protected:
  PutFileTest() : folder_(testing::TempDir() + "/put_file_test") {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }

  // Empty, or the reason for a failure.
  std::string Put(const std::string& name, const std::string& text,
                  int error = 0) {
    std::string why;
    const int file = PutFile(
        AT_FDCWD, Path(name), 0640,
        [&](int to) { return error != 0 ? error : WriteAll(to, text); }, &why);
    EXPECT_EQ(file < 0, !why.empty());
    if (file >= 0) close(file);
    return why;
  }

  std::string Path(const std::string& name) const {
    return (folder_ / name).string();
  }

  std::string Text(const std::string& name) const {
    std::ifstream file(Path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  size_t Files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder_), {}));
  }

  const fs::path folder_;
};

TEST_F(PutFileTest, ReplacesAFileAndLeavesNoOther) {
  EXPECT_EQ(Put("a", "old"), "");
  std::ifstream reader(Path("a"));
  EXPECT_EQ(Put("a", "new"), "");
  EXPECT_EQ(Text("a"), "new");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), "old");
  EXPECT_EQ(Files(), 1U);
  struct stat about = {};
  ASSERT_EQ(stat(Path("a").c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0137U, 0U);
}

TEST_F(PutFileTest, RejectsEverythingButFiles) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  fs::create_directory(Path("folder"));
  std::ofstream(Path("victim")) << "precious";
  fs::create_symlink(Path("victim"), Path("link"));
  EXPECT_EQ(Put("pipe", "x"), "it is a pipe, not a file");
  EXPECT_EQ(Put("folder", "x"), "it is a folder, not a file");
  EXPECT_EQ(Put("link", "x"), "it is a symbolic link, not a file");
  EXPECT_EQ(Put("missing/a", "x"), "No such file or directory");
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
  EXPECT_EQ(Text("victim"), "precious");
  EXPECT_EQ(Files(), 4U);
}

TEST_F(PutFileTest, KeepsTheOldFileIfTheDiskIsFull) {
  EXPECT_EQ(Put("a", "old"), "");
  EXPECT_EQ(Put("a", "new", ENOSPC), "No space left on device");
  EXPECT_EQ(Text("a"), "old");
  EXPECT_EQ(Files(), 1U);
}

TEST_F(PutFileTest, WritesIntoTheGivenFolder) {
  const int folder = open(folder_.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_GE(folder, 0);
  std::string why;
  const int file = PutFile(
      folder, "a", 0600, [](int to) { return WriteAll(to, "text"); }, &why);
  ASSERT_GE(file, 0) << why;
  close(file);
  close(folder);
  EXPECT_EQ(Text("a"), "text");
}

}  // namespace
}  // namespace tf_hvd
