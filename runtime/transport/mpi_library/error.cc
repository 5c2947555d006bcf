#include "runtime/transport/mpi_library/error.h"

#include <string>
#include <vector>

namespace tf_hvd {

Status MpiResult(const MpiApi& api, const char* call, int code) {
  if (code == 0) return Status::Ok();
  std::vector<char> text(8192, '\0');
  if (api.error_string(api.state, code, text.data()) != 0) text[0] = '\0';
  return Aborted(std::string(call) + " failed: " + text.data() + " (error " +
                 std::to_string(code) + ")");
}

}  // namespace tf_hvd
