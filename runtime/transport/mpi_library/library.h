// Selects the MPI library: finds the one that belongs to the running launcher,
// loads it, and fills the table of its functions through the shim of its
// family.
//
// One thread at a time. Loaded libraries are never unloaded.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LIBRARY_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LIBRARY_H_

#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "runtime/transport/mpi_library/api.h"

namespace tf_hvd {

// The families differ in their binary interface. kMpich: MPICH and all
// libraries with its interface (Intel MPI, MVAPICH, Cray MPICH).
enum class MpiFamily { kOpenMpi, kMpich };

const char* NameOf(MpiFamily family);

struct MpiSearch {
  std::string configured;  // TF_HVD_MPI_LIBRARY; empty if unset
  LaunchInfo launch;
  std::string library_dir;              // folder of the shims
  std::vector<std::string> candidates;  // of the Python environment
};

struct MpiLibrary {
  MpiFamily family = MpiFamily::kOpenMpi;
  std::string path;
  bool running = false;  // already initialised by the program
  MpiApi api;
};

// True if this process has an MPI that is initialised and not finalised, such
// as mpi4py's. Loads nothing.
bool MpiIsRunning(const MpiSearch& search);

// Loads the running MPI, or else the first that fits: only the configured one
// if set, otherwise the launcher's, the candidates, the system's. A library of
// a family other than the launcher's is never initialised: it would make N jobs
// of one rank each, or end the process. The error lists the attempts.
Status OpenMpiLibrary(const MpiSearch& search, MpiLibrary* library);

// "Open MPI's launcher (mpirun)", for messages.
std::string Describe(const LaunchInfo& launch);

// The family of the library file at `path`, by its name or else its symbols;
// empty if it is not an MPI library. Does not load it.
std::optional<MpiFamily> FamilyOfFile(const std::string& path);

// Advice for a launcher and libraries that do not match.
std::string MpiCure(const LaunchInfo& launch);

// Ok for 0; otherwise Aborted, with the name of the call and MPI's message.
Status MpiResult(const MpiApi& api, const char* call, int code);

// The library folder next to the program of the nearest ancestor that is an MPI
// launcher's daemon; empty if there is none or it is not visible.
std::string LauncherLibraryDir();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LIBRARY_H_
