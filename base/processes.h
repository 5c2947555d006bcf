// Processes of this machine and their parents, from /proc. It is what a rank
// can learn about others before MPI connects them. Invisible processes (in
// another container) count as nonexistent.
//
// Any thread. Results are not cached, because processes come and go.
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
  std::string name;  // the program's name, at most 15 characters
  // Start time, in a form that can only be compared for equality.
  std::string start;
  bool ended = false;    // a zombie
  bool stopped = false;  // by a signal or a debugger
};

// Empty if the process does not exist.
std::optional<Process> FindProcess(pid_t id);

std::map<pid_t, Process> AllProcesses();

// This machine's name, for messages.
std::string HostName();

// True for programs that start ranks, and for launchers' daemons.
bool IsLauncher(const std::string& name);

// True for the process that `tf_hvd run` puts between the launcher and a rank;
// it is the rank's parent.
bool IsKeeper(const std::string& name);

// The nearest ancestor that is a launcher; 0 if none is visible.
pid_t LauncherAbove(pid_t process, const std::map<pid_t, Process>& all);

// True if a thread of the process has this name.
bool HasThread(pid_t process, const std::string& name);

// "123:4567": identifies this process and no later process with the same
// number.
std::string MarkOf(const Process& process);

// The process that started this one, or an ancestor of it, that has the mark or
// a thread with this name. The search ends at the nearest launcher. 0: none. If
// the marked process is no longer visible, the mark is accepted only if no
// launcher is found above.
pid_t RankAbove(const std::string& mark, const std::string& thread);

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_PROCESSES_H_
