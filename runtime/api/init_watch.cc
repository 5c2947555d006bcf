#include "runtime/api/init_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/processes.h"

namespace tf_hvd {
namespace {

// Between two looks; a look reads the list of all processes.
constexpr int64_t kLookNs = kSecond;
// A rank that has ended may have been seen between two of its launcher's steps:
// it must be gone in so many looks.
constexpr int kLooks = 3;
constexpr char kAll[] = "All ranks of the job must call hvd.init()";

std::string HostName() {
  char name[256] = "";
  gethostname(name, sizeof(name) - 1);
  return name;
}

// "rank 1 has", "ranks 1, 2 have".
std::string Ranks(const std::vector<int>& ranks) {
  constexpr size_t kShown = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > kShown) {
    text += " and " + std::to_string(ranks.size() - kShown) + " more";
  }
  return text + (ranks.size() == 1 ? " has" : " have");
}

std::string EndedText(const std::vector<int>& ended) {
  return Ranks(ended) + " ended without calling it";
}

// What is said of the ranks that have processes here and keep init waiting;
// `missing`: how many of them are not in it.
std::string SeenText(const InitView& view, const std::vector<int>& needed,
                     int* missing) {
  constexpr int kShown = 8;
  std::string text;
  *missing = 0;
  for (const int rank : needed) {
    const auto found = view.ranks.find(rank);
    if (found == view.ranks.end()) continue;
    const InitView::Rank& seen = found->second;
    if (seen.in_init && !seen.stopped) continue;
    if (!seen.in_init && ++*missing > kShown) continue;
    text += "; rank " + std::to_string(rank) + ", " + seen.process;
    if (seen.stopped) {
      text += ", is stopped (SIGSTOP, or a debugger)";
    } else {
      text += ", has not called it yet (still importing, or stuck before it)";
    }
  }
  if (*missing > kShown) {
    text += "; " + std::to_string(*missing - kShown) + " more have not either";
  }
  return text;
}

}  // namespace

InitView LookAtRanks(const LaunchInfo& launch) {
  InitView view;
  const std::map<pid_t, Process> all = AllProcesses();
  const pid_t launcher = LauncherAbove(getpid(), all);
  view.launcher_seen = launcher != 0;
  if (!view.launcher_seen) return view;
  for (const auto& [id, process] : all) {
    if (process.ended || LauncherAbove(id, all) != launcher) continue;
    const pid_t launched = process.stand_in != 0 ? process.stand_in : id;
    const auto rank = LaunchedRankOf(launched, launch.rank_variable);
    const bool first = process.parent == launcher;
    if (!rank) {
      view.unknown += first ? 1 : 0;
      continue;
    }
    InitView::Rank& seen = view.ranks[*rank];
    const auto parent = all.find(process.parent);
    const bool kept = parent != all.end() && IsKeeper(parent->second.name);
    // Of a rank's processes the one that the others come from.
    const bool program = (first || kept) && !IsKeeper(process.name);
    if (seen.process.empty() || program) {
      seen.process = Describe(process);
      seen.stopped = process.stopped;
    }
    seen.in_init = seen.in_init || HasThread(id, InitWatch::kThreadName);
  }
  return view;
}

std::vector<int> EndedRanks(const InitView& view, const LaunchInfo& launch,
                            const std::vector<int>& needed,
                            const std::set<int>& known) {
  std::vector<int> ended;
  if (!view.launcher_seen || view.unknown > 0) return ended;
  const bool all_are_here = launch.local_size == launch.size;
  for (const int rank : needed) {
    const bool here = all_are_here || known.count(rank) != 0;
    if (here && view.ranks.count(rank) == 0) ended.push_back(rank);
  }
  return ended;
}

std::string DescribeWait(const InitView& view, const LaunchInfo& launch,
                         const std::vector<int>& needed,
                         const std::vector<int>& ended, int64_t waited_s) {
  std::string text =
      "init() has waited " + std::to_string(waited_s) + " s for other ranks";
  if (!view.launcher_seen) {
    return text +
           "; which of them have not called it cannot be seen from here "
           "(no launcher is above this process). " +
           kAll;
  }
  int missing = 0;
  text += SeenText(view, needed, &missing);
  if (!ended.empty()) text += "; " + EndedText(ended);
  const auto here = static_cast<int>(view.ranks.size());
  const int absent = launch.local_size - here;
  if (ended.empty() && absent > 0) {
    text += "; " + std::to_string(absent) + " of the " +
            std::to_string(launch.local_size) +
            " ranks of this host have no process any more, or none that can be "
            "seen";
  }
  const int elsewhere = launch.size - std::max(launch.local_size, here);
  if (elsewhere > 0) {
    text += "; nothing is known of the " + std::to_string(elsewhere) +
            " ranks on other hosts";
  }
  if (missing == 0 && ended.empty() && absent <= 0) {
    text += "; the " + std::to_string(here) +
            " ranks of this host have all called it";
  }
  return text + ". " + kAll;
}

InitWatch::InitWatch(const Config& config, const LaunchInfo& launch,
                     std::vector<int> needed)
    : config_(config),
      launch_(launch),
      needed_(std::move(needed)),
      who_("rank " + std::to_string(launch.rank) + " (" + HostName() + ")"),
      start_ns_(NowNs()),
      thread_([this] { Watch(); }) {
  pthread_setname_np(thread_.native_handle(), kThreadName);
}

InitWatch::~InitWatch() {
  over_.Set();
  thread_.join();
}

void InitWatch::Watch() {
  const bool on = config_.stall_warn_ns > 0;
  bool warned = false;
  int looks = 0;  // in a row that found ranks ended
  std::set<int> known;
  while (on) {
    const int64_t limit_ns =
        warned ? config_.stall_fail_ns : config_.stall_warn_ns;
    const int64_t left_ns = start_ns_ + limit_ns - NowNs();
    const bool limited = limit_ns > 0;
    if (over_.WaitFor(limited ? std::clamp<int64_t>(left_ns, 1, kLookNs)
                              : kLookNs)) {
      return;
    }
    const InitView view = LookAtRanks(launch_);
    const auto ended = EndedRanks(view, launch_, needed_, known);
    for (const auto& item : view.ranks) known.insert(item.first);
    looks = ended.empty() ? 0 : looks + 1;
    if (looks >= kLooks) {
      End("init() can never finish: " + EndedText(ended) + ". " + kAll);
    }
    if (!limited || NowNs() < start_ns_ + limit_ns) continue;
    const std::string text =
        DescribeWait(view, launch_, needed_, ended, WaitedSeconds());
    if (warned) End(text);
    warned = true;
    if (config_.log_level <= LogLevel::kWarning) {
      WriteLog(LogLevel::kWarning, who_, text);
    }
  }
  // The thread's name is to be seen for as long as init lasts.
  while (!over_.WaitFor(kSecond)) {
  }
}

void InitWatch::End(const std::string& why) {
  if (config_.log_level <= LogLevel::kError) {
    WriteLog(LogLevel::kError, who_, why + ". This process ends here");
  }
  // Another thread is in MPI_Init: exit handlers would wait for it.
  _exit(1);
}

int64_t InitWatch::WaitedSeconds() const {
  return (NowNs() - start_ns_ + kSecond / 2) / kSecond;
}

}  // namespace tf_hvd
