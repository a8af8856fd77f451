// The memory that the devices of a group share: each allocates a workspace and may write to those of the others.
#pragma once

#if PYXLA_WITH_CUDA
#include "fused_all_reduce_rms_norm/fused_all_reduce_rms_norm.h"
#include "fused_all_reduce_rms_norm/group.h"

namespace fused_all_reduce_rms_norm {

// The peers of the current CUDA device. The first call of a group and channel allocates and waits for the other
// devices, also while XLA captures the stream; the workspaces stay for the process, as captured graphs refer to them.
ffi::Error ConnectPeers(const Group& group, int64_t channel, double timeout, Peers* peers);

}  // namespace fused_all_reduce_rms_norm
#endif
