// Names that `tf_hvd run`, its agent, the ranks and this library share. A test
// compares them with tf_hvd/core/contract.py. No other file may spell one out.
#ifndef TF_HVD_BASE_CONTRACT_H_
#define TF_HVD_BASE_CONTRACT_H_

namespace tf_hvd {

// Environment variables.
inline constexpr char kAloneVariable[] = "TF_HVD_ALONE";
inline constexpr char kRecording[] = "TF_HVD_RECORDING";
inline constexpr char kStartedBy[] = "TF_HVD_STARTED_BY";

// A process name, as shown in /proc.
inline constexpr char kKeeper[] = "tf_hvd_run_rank";

// The name of an anonymous memory file, as shown in /proc.
inline constexpr char kRecorder[] = "tf_hvd_recorder";

// Prefixes of the shared memory files of MPICH, Open MPI, Open MPI before 5 and
// Intel MPI.
inline constexpr const char* kMpiSegments[] = {"mpich_shm_", "sm_segment.",
                                               "vader_segment.", "Intel_MPI_"};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_CONTRACT_H_
