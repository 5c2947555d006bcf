// What `tf_hvd run`, its agent, the ranks and this library call each other:
// names, and nothing else. A test compares them with tf_hvd/core/contract.py,
// and no other file writes one out.
#ifndef TF_HVD_BASE_CONTRACT_H_
#define TF_HVD_BASE_CONTRACT_H_

namespace tf_hvd {

// Environment variables.
inline constexpr char kAloneVariable[] = "TF_HVD_ALONE";
inline constexpr char kRecording[] = "TF_HVD_RECORDING";
inline constexpr char kStartedBy[] = "TF_HVD_STARTED_BY";

// A process, as /proc has its name.
inline constexpr char kKeeper[] = "tf_hvd_run_rank";

// Memory without a name, as /proc has it.
inline constexpr char kRecorder[] = "tf_hvd_recorder";

// How MPICH, Open MPI, Open MPI before 5 and Intel MPI name their shared
// memory.
inline constexpr const char* kMpiSegments[] = {"mpich_shm_", "sm_segment.",
                                               "vader_segment.", "Intel_MPI_"};

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_CONTRACT_H_
