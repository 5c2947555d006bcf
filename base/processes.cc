#include "base/processes.h"

#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/contract.h"

namespace tf_hvd {
namespace {

// Prevents an endless loop if process numbers change while they are read.
constexpr int kMaxAncestors = 64;

std::string FolderOf(pid_t process) {
  return "/proc/" + std::to_string(process);
}

// Empty if the file cannot be read. A process may end between open and read,
// which then fails: an iterator over the file would throw, operator<< does not.
std::string Contents(const std::string& path) {
  std::ostringstream contents;
  contents << std::ifstream(path, std::ios::binary).rdbuf();
  return contents.str();
}

// Calls `visit` with each numeric name in a folder.
template <typename Visit>
void EachNumber(const std::string& folder, const Visit& visit) {
  DIR* const entries = opendir(folder.c_str());
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    const auto number = static_cast<pid_t>(std::atol(entry->d_name));
    if (number > 0) visit(number);
  }
  closedir(entries);
}

std::string WithoutLineEnd(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

std::optional<Process> FindProcess(pid_t id) {
  const std::string line = Contents(FolderOf(id) + "/stat");
  // The second field is a name in parentheses that may contain any character.
  const size_t begin = line.find('(');
  const size_t end = line.rfind(')');
  if (begin == std::string::npos || end == std::string::npos) {
    return std::nullopt;
  }
  Process process;
  process.id = id;
  process.name = line.substr(begin + 1, end - begin - 1);
  std::istringstream rest(line.substr(end + 1));
  std::string state;
  rest >> state >> process.parent;
  process.ended = state == "Z" || state == "X";
  process.stopped = state == "T" || state == "t";
  constexpr int kFieldsBeforeStart = 17;  // proc(5): fields 5 to 21
  for (int i = 0; i < kFieldsBeforeStart; ++i) rest >> state;
  rest >> process.start;
  if (!rest) return std::nullopt;
  return process;
}

std::map<pid_t, Process> AllProcesses() {
  std::map<pid_t, Process> all;
  EachNumber("/proc", [&all](pid_t id) {
    if (auto process = FindProcess(id)) all[id] = *std::move(process);
  });
  return all;
}

bool IsLauncher(const std::string& name) {
  for (const char* launcher :
       {"hydra_pmi_proxy", "mpiexec.hydra", "mpiexec.gforker", "prte", "prted",
        "prterun", "orted", "orterun", "mpirun", "mpiexec", "slurmstepd"}) {
    if (name == launcher) return true;
  }
  return false;
}

bool IsKeeper(const std::string& name) { return name == kKeeper; }

pid_t LauncherAbove(pid_t process, const std::map<pid_t, Process>& all) {
  auto found = all.find(process);
  for (int i = 0; i < kMaxAncestors && found != all.end(); ++i) {
    found = all.find(found->second.parent);
    if (found != all.end() && IsLauncher(found->second.name)) {
      return found->first;
    }
  }
  return 0;
}

bool HasThread(pid_t process, const std::string& name) {
  bool has = false;
  const std::string tasks = FolderOf(process) + "/task";
  EachNumber(tasks, [&](pid_t task) {
    has = has || WithoutLineEnd(Contents(tasks + "/" + std::to_string(task) +
                                         "/comm")) == name;
  });
  return has;
}

std::string MarkOf(const Process& process) {
  return std::to_string(process.id) + ":" + process.start;
}

pid_t RankAbove(const std::string& mark, const std::string& thread) {
  const std::map<pid_t, Process> all = AllProcesses();
  auto found = all.find(getpid());
  if (found == all.end() || mark == MarkOf(found->second)) return 0;
  for (int i = 0; i < kMaxAncestors; ++i) {
    found = all.find(found->second.parent);
    if (found == all.end()) break;
    const auto& [id, ancestor] = *found;
    if (IsLauncher(ancestor.name)) return 0;
    if (MarkOf(ancestor) == mark || HasThread(id, thread)) return id;
  }
  return static_cast<pid_t>(std::atol(mark.c_str()));
}

}  // namespace tf_hvd
