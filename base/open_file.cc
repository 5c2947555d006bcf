#include "base/open_file.h"

#include <unistd.h>

namespace tf_hvd {

OpenFile::OpenFile(int number) : number_(number) {
  struct stat about = {};
  if (fstat(number, &about) != 0) return;
  device_ = about.st_dev;
  inode_ = about.st_ino;
}

bool OpenFile::IsOpen() const {
  struct stat about = {};
  return number_ >= 0 && fstat(number_, &about) == 0 &&
         about.st_dev == device_ && about.st_ino == inode_;
}

void OpenFile::Close() {
  if (IsOpen()) close(number_);
  number_ = -1;
}

}  // namespace tf_hvd
