// The shape of the decode kernel's CTAs.
#pragma once

#include "paged_attention/decode/scheduler.cuh"
#include "pyxla/device/ptx/mbarrier.cuh"

namespace paged_attention::decode {

__host__ __device__ constexpr int Max(int a, int b) { return a > b ? a : b; }

// A CTA's shape for rows of kDim elements of T, of which head_dim are in use; keys and values are Kv, T or float8.
template <typename T_, typename Kv, int kDim_, int kTiles_, int kGroups_ = 1>
struct Shape {
  using T = T_;
  static constexpr bool kIsFloat8 = sizeof(Kv) == 1;
  static constexpr int kDim = kDim_;

  // Columns of the MMAs: a warp's query rows of a work tile in tiles of eight.
  static constexpr int kTiles = kTiles_, kWarpRows = kTiles * 8;
  // KV tiles w, w + kShares, ... of a work tile are share w of its keys.
  static constexpr int kShares = kDim == 256 ? 3 : 6, kWarps = kShares, kThreads = kWarps * kWarpSize;
  // kGroups warps have a ring together, and each has other rows. The ring's KV tiles are those of a share, and in a
  // second pass those of another one.
  static constexpr int kGroups = kGroups_, kRows = kWarpRows * kGroups;
  static constexpr int kRings = kWarps / kGroups, kPasses = kShares / kRings;
  static constexpr int kCtasPerSm = 2;

  // Fewer entries where the m and l of more rows need the space.
  using Scheduler = TileScheduler<kThreads, kRows == 8 ? 6 : kRows == 16 ? 4 : 2, kRows>;

  // A stage holds kKeys keys and their values.
  static constexpr int kStages = 2;
  static constexpr int kRowBytes = kDim * sizeof(Kv);
  static constexpr int kStageBytes = Max(8192, kDim * 64);
  static constexpr int kKeys = kStageBytes / (2 * kRowBytes), kValues = kKeys * kRowBytes;
  static constexpr int kRingBytes = kStages * kStageBytes;
  // A warp's O replaces a stage, if no other warp has that ring; else it follows the rings.
  static constexpr int kOBytes = kWarpRows * kDim * sizeof(float);
  static constexpr int kSharedBytes = kRings * kRingBytes + (kGroups > 1 ? kWarps * kOBytes : 0);
  static_assert(kSharedBytes <= 96 * 1024,
                "fits twice into Hopper's shared memory; with 3 KB more, once into any of sm_80 and newer");
  static_assert(kGroups > 1 || kOBytes <= kStageBytes);
  static_assert(kKeyUnit % (kShares * kKeys) == 0 && kKeys % 16 == 0);

  // Of the warp. With groups, registers are too few to keep what follows from its number: each use computes it again.
  __device__ static int Ring() { return kGroups == 1 ? Warp() : OpaqueThread() / (kGroups * kWarpSize); }
  __device__ static int Group() { return kGroups == 1 ? 0 : OpaqueThread() / kWarpSize % kGroups; }
  __device__ static int FirstRow() { return Group() * kWarpRows; }
  __device__ static int Share(int pass) { return Ring() + pass * kRings; }

  // For the warps of a ring.
  __device__ static void SyncRing() {
    if (kGroups == 1) {
      __syncwarp();
    } else {
      ptx::bar_sync(1 + Ring(), kGroups * kWarpSize);
    }
  }

  // 16-byte vectors of a row. A warp copies kCopyRows rows at a time, a vector to a lane.
  static constexpr int kVectors = kRowBytes / 16, kCopyRows = kWarpSize / kVectors;

  // The place of a row's vector: no two of the eight rows of a matrix are in the same banks.
  __device__ static int Offset(int row, int vector) { return row * kRowBytes + (vector * 16 ^ Swizzle(row)); }
  __device__ static int Swizzle(int row) { return (kVectors >= 8 ? row & 7 : row / 2 & 3) * 16; }

  // The same for a warp's O, float [kWarpRows][kDim].
  __device__ static int OOffset(int row, int column) { return row * kDim + (column ^ (row / 2 & 3) * 8); }

  // After the rings: where the O of a warp begins that shares its ring.
  __device__ static int OBegin(int ring, int group) { return kRings * kRingBytes + (ring * kGroups + group) * kOBytes; }
};

}  // namespace paged_attention::decode
