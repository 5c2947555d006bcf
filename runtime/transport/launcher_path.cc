#include "runtime/transport/launcher_path.h"

#include <limits.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

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

// 0 if it cannot be told.
pid_t ParentOf(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  // The second field is a name in parentheses that may hold anything.
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos || name_end + 4 > line.size()) return 0;
  return static_cast<pid_t>(std::atol(line.c_str() + name_end + 4));
}

bool IsLauncher(const std::string& name) {
  for (const char* launcher :
       {"hydra_pmi_proxy", "mpiexec.hydra", "prted", "prterun", "orted",
        "orterun", "mpirun", "mpiexec"}) {
    if (name == launcher) return true;
  }
  return false;
}

}  // namespace

std::string LauncherLibraryDir() {
  pid_t process = getppid();
  for (int i = 0; i < kMaxAncestors && process > 1; ++i) {
    const std::string program = ProgramOf(process);
    const size_t slash = program.rfind('/');
    if (slash != std::string::npos && IsLauncher(program.substr(slash + 1))) {
      const size_t parent = program.rfind('/', slash - 1);
      if (slash == 0 || parent == std::string::npos) return "";
      return program.substr(0, parent) + "/lib";
    }
    process = ParentOf(process);
  }
  return "";
}

}  // namespace tf_hvd
