// NcclBoard: the place where ranks of a software NCCL post data for the other
// ranks: the memory of one process, or files.
//
// MemoryBoard is not locked: the machine's lock is held. FileBoard serves
// several processes on one machine: an existing entry is always complete.
#ifndef TF_HVD_TESTS_GPU_NCCL_BOARD_H_
#define TF_HVD_TESTS_GPU_NCCL_BOARD_H_

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>

namespace tf_hvd {

class NcclBoard {
 public:
  virtual ~NcclBoard() = default;
  virtual void Post(const std::string& key, std::string text) = 0;
  virtual bool Has(const std::string& key) = 0;
  // Reads an existing entry.
  virtual std::string Get(const std::string& key) = 0;
  // Removes entries that are no longer read: this key, and all keys with this
  // prefix.
  virtual void Remove(const std::string& key) = 0;
  virtual void RemoveAll(const std::string& start) = 0;
};

class MemoryBoard final : public NcclBoard {
 public:
  void Post(const std::string& key, std::string text) override {
    texts_[key] = std::move(text);
  }
  bool Has(const std::string& key) override { return texts_.count(key) > 0; }
  std::string Get(const std::string& key) override { return texts_.at(key); }
  // Valid as long as the board.
  void Remove(const std::string&) override {}
  void RemoveAll(const std::string&) override {}

 private:
  std::map<std::string, std::string> texts_;
};

class FileBoard final : public NcclBoard {
 public:
  // The board consists of files in the folder with names that begin with
  // `prefix`.
  FileBoard(const std::string& folder, const std::string& prefix)
      : start_(folder + "/" + prefix) {}

  void Post(const std::string& key, std::string text) override {
    const std::string path = PathOf(key);
    std::ofstream(path + ".new", std::ios::binary) << text;
    std::rename((path + ".new").c_str(), path.c_str());
  }
  bool Has(const std::string& key) override {
    return access(PathOf(key).c_str(), R_OK) == 0;
  }
  std::string Get(const std::string& key) override {
    std::ifstream file(PathOf(key), std::ios::binary);
    return {std::istreambuf_iterator<char>(file),
            std::istreambuf_iterator<char>()};
  }
  void Remove(const std::string& key) override {
    std::remove(PathOf(key).c_str());
  }
  void RemoveAll(const std::string& start) override {
    glob_t found;
    if (glob((PathOf(start) + "*").c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc; ++i)
        std::remove(found.gl_pathv[i]);
    }
    globfree(&found);
  }

 private:
  std::string PathOf(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '-');
    return start_ + key;
  }

  const std::string start_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_NCCL_BOARD_H_
