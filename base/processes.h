// Processes of this machine, as /proc tells of them: who started whom. For
// what a rank can know of others before MPI connects them. What cannot be seen
// (another container's processes) is not there.
//
// Any thread. Nothing here is kept: processes come and go.
#ifndef TF_HVD_BASE_PROCESSES_H_
#define TF_HVD_BASE_PROCESSES_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>

namespace tf_hvd {

struct Process {
  pid_t id = 0;
  pid_t parent = 0;
  std::string name;      // as its program's, 15 characters at most
  std::string start;     // when, in a form that only says whether it is equal
  bool ended = false;    // a zombie
  bool stopped = false;  // by a signal or a debugger
};

// Nothing if there is none.
std::optional<Process> FindProcess(pid_t id);

std::map<pid_t, Process> AllProcesses();

// This machine's, for people.
std::string HostName();

// One of the programs that start ranks, or a launcher's daemon.
bool IsLauncher(const std::string& name);

// What `tf_hvd run` puts between the launcher and a rank, whose parent it is.
bool IsKeeper(const std::string& name);

// The nearest ancestor that is a launcher; 0 if none is to be seen.
pid_t LauncherAbove(pid_t process, const std::map<pid_t, Process>& all);

// True if a thread of the process has this name.
bool HasThread(pid_t process, const std::string& name);

// "123:4567", which stands for this process and no later one of the same
// number.
std::string MarkOf(const Process& process);

// The process that started this one, or an ancestor of it, and has the mark or
// a thread of this name; the search ends at the nearest launcher. 0: none. A
// mark of a process that is not to be seen any more counts where no launcher
// is found above.
pid_t RankAbove(const std::string& mark, const std::string& thread);

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_PROCESSES_H_
