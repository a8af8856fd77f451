// Rotates heads on the GPU, an item of a head per thread.
#pragma once

#include "_rotary/rotary.h"
#include "pyxla/device/vector.cuh"

namespace pyxla {

/** The cosines or the sines of kCount pairs, from kParts places of a row of the table. */
template <typename C, int kCount, int kParts>
struct RotaryFactors {
  static constexpr int kSize = kCount / kParts;
  Vector<C, kSize> parts[kParts];

  __device__ void Load(const Vector<C, kSize>* from, int64_t step) {
#pragma unroll
    for (int i = 0; i < kParts; ++i) parts[i] = from[i * step];
  }
  __device__ float operator[](int i) const { return static_cast<float>(parts[i / kSize].values[i % kSize]); }
};

/** How many items of a head are pairs; after them come vectors that stay as they are. */
inline int64_t RotaryPairItems(const RotaryParams& p, int count) { return p.rot_dim / 2 / count; }

/** Whether an item may be `count` pairs; the op looks at the addresses of the heads itself. */
inline bool IsRotaryVectorized(const RotaryParams& p, int count) {
  const size_t table_bytes = p.table_dtype == FloatType::kFloat32 ? sizeof(float) : sizeof(uint16_t);
  return p.d % count == 0 && p.rot_dim / 2 % count == 0 && IsAligned(p.cos_sin_cache, table_bytes * count);
}

/**
 * An item of a head that is kCount pairs, as two vectors: the first and the second elements of the pairs, or, if
 * interleaved, kCount / 2 whole pairs each. Neighbouring threads access neighbouring vectors; only if a vector is one
 * element, two that are interleaved are next to each other.
 */
template <typename T, int kCount, bool kInterleaved>
struct RotaryItem {
  int64_t first;
  int64_t second;
  Vector<T, kCount> vectors[2];

  // Loads the item of the head.
  __device__ RotaryItem(const Vector<T, kCount>* head, int64_t item, int64_t pair_items) {
    constexpr bool kAdjacent = kInterleaved && kCount == 1;
    first = kAdjacent ? 2 * item : item;
    second = kAdjacent ? first + 1 : item + pair_items;
    vectors[0] = LoadOnce(head + first);
    vectors[1] = LoadOnce(head + second);
  }

  // Rotates it by the angles, of type C, of the position; one out of range makes NaN of it.
  template <typename C>
  __device__ void Rotate(const RotaryParams& p, int64_t position, int64_t item, int64_t pair_items) {
    constexpr int kParts = kInterleaved && kCount > 1 ? 2 : 1;  // an interleaved vector holds half of the pairs
    RotaryFactors<C, kCount, kParts> cos, sin;
    const bool in_range = position >= 0 && position < p.max_position;
    if (in_range) {
      const auto* row =
          static_cast<const Vector<C, kCount / kParts>*>(p.cos_sin_cache) + position * 2 * kParts * pair_items;
      cos.Load(row + item, pair_items);
      sin.Load(row + kParts * pair_items + item, pair_items);
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      constexpr int kStep = kInterleaved ? 2 : 1, kPartner = kInterleaved ? 1 : kCount;
      T& a = vectors[kStep * j / kCount].values[kStep * j % kCount];
      T& b = vectors[(kStep * j + kPartner) / kCount].values[(kStep * j + kPartner) % kCount];
      const float x = static_cast<float>(a), y = static_cast<float>(b), c = in_range ? cos[j] : nanf("");
      a = static_cast<T>(x * c - y * sin[j]);
      b = static_cast<T>(y * c + x * sin[j]);
    }
  }
};

}  // namespace pyxla
