#include "runtime/transport/mpi_library/launcher_path.h"

#include <limits.h>
#include <unistd.h>

#include <string>

#include "runtime/base/processes.h"

namespace tf_hvd {
namespace {

// A rank may be a few shells away from its launcher.
constexpr int kMaxAncestors = 8;

std::string ProgramOf(pid_t process) {
  char path[PATH_MAX];
  const std::string link = "/proc/" + std::to_string(process) + "/exe";
  const ssize_t length = readlink(link.c_str(), path, sizeof(path));
  return length <= 0 ? std::string()
                     : std::string(path, static_cast<size_t>(length));
}

}  // namespace

std::string LauncherLibraryDir() {
  pid_t process = getppid();
  for (int i = 0; i < kMaxAncestors && process > 1; ++i) {
    const std::string program = ProgramOf(process);
    const size_t slash = program.rfind('/');
    const std::string name =
        slash == std::string::npos ? "" : program.substr(slash + 1);
    // Slurm's daemon has no MPI beside it.
    if (IsLauncher(name) && name != "slurmstepd") {
      const size_t parent = program.rfind('/', slash - 1);
      if (slash == 0 || parent == std::string::npos) return "";
      return program.substr(0, parent) + "/lib";
    }
    const auto found = FindProcess(process);
    process = found ? found->parent : 0;
  }
  return "";
}

}  // namespace tf_hvd
