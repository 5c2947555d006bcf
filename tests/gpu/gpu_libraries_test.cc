// Tests which driver and which NCCL are opened, and the messages if none is
// found. Each search runs in a separate process (libraries/probe.cc), among
// libraries that exist only for this test.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/transport/gpu/libraries.h"

namespace tf_hvd {
namespace {

namespace fs = std::filesystem;

fs::path Fixtures() {
  return fs::path(std::getenv("TEST_SRCDIR")) / std::getenv("TEST_WORKSPACE") /
         "tests/gpu/libraries";
}

std::string Nccl(const std::string& name) {
  return Fixtures() / name / "libnccl.so.2";
}

std::string Driver() { return Fixtures() / "libsoftware_cuda.so"; }

// A Python environment with NCCL's wheel.
class Environment {
 public:
  explicit Environment(const std::string& name)
      : root_(fs::path(testing::TempDir()) / name) {
    fs::remove_all(root_);
    fs::create_directories(nccl().parent_path());
  }
  ~Environment() { fs::remove_all(root_); }

  fs::path nccl() const { return root_ / "nvidia/nccl/lib/libnccl.so.2"; }

 private:
  const fs::path root_;
};

struct Search {
  std::string cuda = Driver();
  std::string nccl;
  std::string use_nccl = "1";
  std::string candidate = "no_such_folder/libnccl.so.2";
  std::string opened_first;
  std::string loader_path;  // LD_LIBRARY_PATH
};

struct Found {
  std::string cuda;  // the file, or the reason if there is none
  int version = 0;
  std::string path;
  std::string no_nccl;
};

Found Probe(const Search& search) {
  std::string command = "LD_LIBRARY_PATH='" + search.loader_path + "' '" +
                        std::string(Fixtures() / "probe") + "'";
  for (const std::string& word :
       {search.cuda, search.nccl, search.use_nccl, search.candidate}) {
    command += " '" + word + "'";
  }
  if (!search.opened_first.empty()) command += " '" + search.opened_first + "'";
  FILE* const pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 4096> part;
  while (fgets(part.data(), part.size(), pipe) != nullptr) {
    output += part.data();
  }
  EXPECT_EQ(pclose(pipe), 0) << command;
  std::istringstream lines(output);
  Found found;
  std::string version;
  std::getline(lines, found.cuda);
  std::getline(lines, version);
  std::getline(lines, found.path);
  std::getline(lines, found.no_nccl);
  found.version = std::atoi(version.c_str());
  return found;
}

// All three places have one, and a configured one also exists.
TEST(GpuLibraries, PlacesInTheirOrder) {
  const Environment environment("places");
  fs::copy_file(Nccl("environments"), environment.nccl());
  Search search;
  search.candidate = environment.nccl();
  search.loader_path = fs::path(Nccl("systems")).parent_path();

  search.opened_first = Nccl("opened_first");
  Found found = Probe(search);
  EXPECT_EQ(found.version, 22101) << found.no_nccl;
  EXPECT_EQ(found.path, Nccl("opened_first"));
  EXPECT_EQ(found.no_nccl, "");

  search.opened_first.clear();
  found = Probe(search);
  EXPECT_EQ(found.version, 22202) << found.no_nccl;
  EXPECT_TRUE(fs::equivalent(found.path, environment.nccl())) << found.path;

  fs::remove(environment.nccl());
  found = Probe(search);
  EXPECT_EQ(found.version, 22303) << found.no_nccl;
  EXPECT_EQ(found.path, Nccl("systems"));
  EXPECT_EQ(found.no_nccl, "");
}

TEST(GpuLibraries, OnlyTheConfiguredLibrary) {
  const Environment environment("configured");
  fs::copy_file(Nccl("environments"), environment.nccl());
  Search search;
  search.candidate = environment.nccl();
  search.opened_first = Nccl("opened_first");
  search.loader_path = fs::path(Nccl("systems")).parent_path();
  search.nccl = Nccl("configured");
  const Found found = Probe(search);
  EXPECT_EQ(found.version, 22404) << found.no_nccl;
  EXPECT_EQ(found.path, Nccl("configured"));

  search.nccl = "no_such_libnccl.so.2";
  const Found none = Probe(search);
  EXPECT_EQ(none.version, 0);
  EXPECT_EQ(none.path, "");
  EXPECT_EQ(none.no_nccl,
            "no_such_libnccl.so.2: cannot open shared object file: No such "
            "file or directory");
}

TEST(GpuLibraries, MessagesIfNoneIsFound) {
  const std::string none = "there is no CUDA driver";
  const auto nccl = [](const std::string& name, const char* use = "1") {
    Search search;
    search.nccl = Nccl(name);
    search.use_nccl = use;
    return search;
  };
  const auto cuda = [&](const std::string& file) {
    Search search = nccl("configured");
    search.cuda = file;
    return search;
  };
  const struct {
    Search search;
    std::string cuda;
    std::string path;  // empty: not searched
    std::string no_nccl;
  } kRows[] = {
      {cuda("no_such_libcuda.so.1"),
       "no_such_libcuda.so.1: cannot open shared object file: No such file or "
       "directory",
       "", none},
      // A library with other functions.
      {cuda(Nccl("configured")), Nccl("configured") + " has no cuInit", "",
       none},
      {nccl("configured", "0"), Driver(), "", "TF_HVD_NCCL=0"},
      {nccl("incomplete"), Driver(), Nccl("incomplete"),
       Nccl("incomplete") + " has no ncclGetUniqueId"},
      {nccl("too_old"), Driver(), Nccl("too_old"),
       Nccl("too_old") + " is older than 2.14"},
  };
  for (const auto& row : kRows) {
    const Found found = Probe(row.search);
    EXPECT_EQ(found.cuda, row.cuda);
    EXPECT_EQ(found.version, 0);
    EXPECT_EQ(found.path, row.path);
    EXPECT_EQ(found.no_nccl, row.no_nccl);
  }
}

// The process already has one: opening a second one would not help.
TEST(GpuLibraries, AnOpenTooOldLibraryIsNotReplaced) {
  const Environment environment("too_old");
  fs::copy_file(Nccl("environments"), environment.nccl());
  Search search;
  search.candidate = environment.nccl();
  search.opened_first = Nccl("too_old");
  EXPECT_EQ(Probe(search).no_nccl, Nccl("too_old") + " is older than 2.14");
}

TEST(GpuLibraries, NoNcclAnywhere) {
  if (dlopen("libnccl.so.2", RTLD_NOW) != nullptr) {
    GTEST_SKIP() << "this machine has NCCL";
  }
  const Environment environment("nowhere");
  Search search;
  search.candidate = environment.nccl();
  EXPECT_EQ(Probe(search).no_nccl,
            "libnccl.so.2: cannot open shared object file: No such file or "
            "directory");
  // An invalid file is reported, rather than that the system has none.
  std::ofstream(environment.nccl()) << "a download that was cut off";
  const Found found = Probe(search);
  EXPECT_EQ(found.version, 0);
  EXPECT_NE(found.no_nccl.find("nvidia/nccl/lib/libnccl.so.2: "),
            std::string::npos)
      << found.no_nccl;
  // The system's library is still used.
  search.loader_path = fs::path(Nccl("systems")).parent_path();
  EXPECT_EQ(Probe(search).version, 22303);
}

// Another thread may be reading the table of a library that is requested again.
TEST(GpuLibraries, ALibrarysTableIsNotMoved) {
  const GpuSearch search = {Driver(), Nccl("configured"), true, {}};
  const GpuLibraries first = OpenGpuLibraries(search);
  const GpuLibraries again = OpenGpuLibraries(search);
  ASSERT_NE(first.nccl, nullptr) << first.no_nccl;
  EXPECT_EQ(first.cuda, again.cuda);
  EXPECT_EQ(first.nccl, again.nccl);
  const GpuLibraries other =
      OpenGpuLibraries({Driver(), Nccl("systems"), true, {}});
  EXPECT_NE(other.nccl, first.nccl);
  int version = 0;
  EXPECT_EQ(first.nccl->get_version(&version), 0);
  EXPECT_EQ(version, 22404);
}

}  // namespace
}  // namespace tf_hvd
