// Which MPI serves: finds the library that belongs to the running launcher,
// opens it, and fills the table of its functions by the shim of its family.
//
// One thread at a time. Opened libraries are never closed.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LIBRARY_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LIBRARY_H_

#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "runtime/transport/mpi_library/api.h"

namespace tf_hvd {

// The families differ in their binary interface. kMpich: MPICH and all that
// keep its interface (Intel MPI, MVAPICH, Cray MPICH).
enum class MpiFamily { kOpenMpi, kMpich };

const char* NameOf(MpiFamily family);

struct MpiSearch {
  std::string configured;  // TF_HVD_MPI_LIBRARY; empty if unset
  LaunchInfo launch;
  std::string library_dir;              // where the shims lie
  std::vector<std::string> candidates;  // of the Python environment
};

struct MpiLibrary {
  MpiFamily family = MpiFamily::kOpenMpi;
  std::string path;
  bool running = false;  // somebody has initialised it already
  MpiApi api;
};

// True if this process has an MPI that is initialised and not finalised, such
// as mpi4py's. Opens nothing.
bool MpiIsRunning(const MpiSearch& search);

// Opens the running MPI or else the first that fits: the configured one alone
// if there is one, else the launcher's, the candidates, the system's. One that
// is not of the launcher's family is never initialised: it would make N jobs of
// one rank each, or end the process. The error lists what was tried.
Status OpenMpiLibrary(const MpiSearch& search, MpiLibrary* library);

// "Open MPI's launcher (mpirun)", for messages.
std::string Describe(const LaunchInfo& launch);

// The family of the library file at `path`, by its name or else its symbols;
// nothing if it is no MPI library. Does not load it.
std::optional<MpiFamily> FamilyOfFile(const std::string& path);

// What to do when the launcher and the libraries do not belong together.
std::string MpiCure(const LaunchInfo& launch);

// Ok for 0; else Aborted, with the name of the call and MPI's own words.
Status MpiResult(const MpiApi& api, const char* call, int code);

// The library folder beside the program of the nearest ancestor that is an MPI
// launcher's daemon; empty if there is none or it cannot be seen.
std::string LauncherLibraryDir();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LIBRARY_H_
