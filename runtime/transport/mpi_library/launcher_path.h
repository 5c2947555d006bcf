// Where the launcher that started this process is installed.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LAUNCHER_PATH_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LAUNCHER_PATH_H_

#include <string>

namespace tf_hvd {

// The library folder beside the program of the nearest ancestor that is an MPI
// launcher's daemon; empty if there is none or it cannot be seen.
std::string LauncherLibraryDir();

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_LIBRARY_LAUNCHER_PATH_H_
