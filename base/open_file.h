// OpenFile: a file that this process has opened, known again after its number
// was given to another one: scripts close files that they have not opened.
#ifndef TF_HVD_BASE_OPEN_FILE_H_
#define TF_HVD_BASE_OPEN_FILE_H_

#include <sys/stat.h>

namespace tf_hvd {

class OpenFile {
 public:
  OpenFile() = default;
  explicit OpenFile(int number);

  int number() const { return number_; }
  // False if somebody has closed it.
  bool IsThere() const;
  // Unless somebody has.
  void Close();

 private:
  int number_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_OPEN_FILE_H_
