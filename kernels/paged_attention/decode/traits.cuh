// The shape of the decode kernel's CTAs.
#pragma once

#include "paged_attention/decode/scheduler.cuh"

namespace paged_attention::decode {

__host__ __device__ constexpr int Max(int a, int b) { return a > b ? a : b; }

// A CTA's shape for rows of kDim elements of T, of which head_dim are in use; keys and values are Kv, T or float8.
template <typename T_, typename Kv, int kDim_, int kTiles_>
struct Shape {
  using T = T_;
  static constexpr bool kIsFloat8 = sizeof(Kv) == 1;
  static constexpr int kDim = kDim_;

  // Columns of the MMAs: query rows of a work tile in tiles of eight.
  static constexpr int kTiles = kTiles_, kRows = kTiles * 8;
  static constexpr int kWarps = kDim == 256 ? 3 : 6, kThreads = kWarps * kWarpSize;
  static constexpr int kCtasPerSm = 2;

  // Fewer entries where the m and l of more rows need the space.
  using Scheduler = TileScheduler<kThreads, kTiles == 1 ? 6 : 4, kRows>;

  // Each warp has a ring of its own. A stage holds kKeys keys and their values.
  static constexpr int kStages = 2;
  static constexpr int kRowBytes = kDim * sizeof(Kv);
  static constexpr int kStageBytes = Max(8192, kDim * 64);
  static constexpr int kKeys = kStageBytes / (2 * kRowBytes), kValues = kKeys * kRowBytes;
  static constexpr int kRingBytes = kStages * kStageBytes, kSharedBytes = kWarps * kRingBytes;
  static_assert(kSharedBytes <= 96 * 1024,
                "fits twice into Hopper's shared memory; with 3 KB more, once into any of sm_80 and newer");
  static_assert(kRows * kDim * sizeof(float) <= kStageBytes, "a warp's O replaces a stage");
  static_assert(kKeyUnit % (kWarps * kKeys) == 0 && kKeys % 16 == 0);

  // 16-byte vectors of a row. A warp copies kCopyRows rows at a time, a vector to a lane.
  static constexpr int kVectors = kRowBytes / 16, kCopyRows = kWarpSize / kVectors;

  // The place of a row's vector: no two of the eight rows of a matrix are in the same banks.
  __device__ static int Offset(int row, int vector) { return row * kRowBytes + (vector * 16 ^ Swizzle(row)); }
  __device__ static int Swizzle(int row) { return (kVectors >= 8 ? row & 7 : row / 2 & 3) * 16; }

  // The same for a warp's O, float [kRows][kDim].
  __device__ static int OOffset(int row, int column) { return row * kDim + (column ^ (row / 2 & 3) * 8); }
};

}  // namespace paged_attention::decode
