// Where MPI listens. Open MPI's ranks accept connections on every interface,
// whichever they use.
#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_LISTENERS_H_
#define TF_HVD_RUNTIME_TRANSPORT_MPI_LISTENERS_H_

#include <set>
#include <string>

namespace tf_hvd {

// The files of this process that are sockets which accept connections on every
// interface.
std::set<int> WideListeners();

// Those of these sockets that are not in `others` accept connections from now
// on only by the interface that has an address in the networks, a list as
// 10.0.0.0/24,192.168.0.0/16; by every one as before if it is none, or not one.
void Narrow(const std::set<int>& listeners, const std::set<int>& others,
            const std::string& networks);

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_MPI_LISTENERS_H_
