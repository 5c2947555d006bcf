// OpenFile: a file that this process has opened. Detects when its number has
// been reused for another file, because scripts close files that they have not
// opened.
#ifndef TF_HVD_BASE_OPEN_FILE_H_
#define TF_HVD_BASE_OPEN_FILE_H_

#include <sys/stat.h>

namespace tf_hvd {

class OpenFile {
 public:
  OpenFile() = default;
  explicit OpenFile(int number);

  int number() const { return number_; }
  // False if the program has closed the file.
  bool IsOpen() const;
  // Closes the file unless the program already has.
  void Close();

 private:
  int number_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_OPEN_FILE_H_
