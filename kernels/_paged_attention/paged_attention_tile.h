// Attention of one tile: some query rows of one kv head against a range of keys, on one thread.
//
// No include guard: paged_attention_host.h includes this once per instruction set and defines before each
//   PA_NAMESPACE  a name for what is compiled here
//   PA_TARGET     the function attribute that selects the instruction set
//   PA_LANES      floats per vector register
//
// Rows are pairs of token and head of the group, row = token * group + head, so that a decode step with grouped heads
// and a long prefill are the same problem: a matrix of rows against the keys and values of one kv head.

#include "_paged_attention/paged_attention_simd.h"

namespace pyxla::paged_attention_host::PA_NAMESPACE {

// Asks for a row of the cache before it is needed: rows of one head lie too far apart for the hardware to foresee.
template <typename T>
PA_INLINE void Prefetch(const T* row, int64_t head_dim) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < head_dim; i += kLine) __builtin_prefetch(row + i, 0, 2);
}

// Keys become panels [key / kPanel][dimension][key % kPanel], transposed in registers.
template <typename T>
PA_FUNCTION void LoadKeys(const T* cache, const T* next_cache, const int64_t* offsets, int count, int64_t head_dim,
                          float* keys) {
  for (int key = 0; key < count; key += kLanes) {
    for (int j = 0; j < kLanes; ++j) Prefetch(next_cache + offsets[key + j], head_dim);
    float* panel = keys + key / kPanel * kPanel * head_dim + key % kPanel;
    for (int64_t i = 0; i < head_dim; i += kLanes) {
      Vec square[kLanes];
      for (int j = 0; j < kLanes; ++j) square[j] = Load(cache + offsets[key + j] + i);
      Transpose(square);
      for (int j = 0; j < kLanes; ++j) Store(panel + (i + j) * kPanel, square[j]);
    }
  }
}

// Values become panels [dimension / kPanel][key][dimension % kPanel].
template <typename T>
PA_FUNCTION void LoadValues(const T* cache, const T* next_cache, const int64_t* offsets, int count, int64_t head_dim,
                            float* values) {
  for (int key = 0; key < count; ++key) {
    Prefetch(next_cache + offsets[kTileKeys + key], head_dim);
    const T* from = cache + offsets[key];
    float* to = values + key * kPanel;
    for (int64_t i = 0; i < head_dim; i += kPanel, to += Scratch::kValueRows * kPanel) {
      Store(to, Load(from + i));
      if (i + kLanes < head_dim) Store(to + kLanes, Load(from + i + kLanes));
    }
  }
}

// Online softmax of one row: logits [begin, end) become weights relative to the row's largest logit so far; what the
// row has summed up before is scaled to the new maximum. `distance` is from the row's position to that of logits[0].
PA_FUNCTION void UpdateSoftmax(const Params& p, float scale, float slope, int64_t distance, float* logits, int begin,
                               int end, float* row_max, float* row_sum, float* out, int64_t out_width) {
  const int first = begin / kLanes * kLanes;
  for (int i = first; i < end; i += kLanes) {
    Vec x = Load(logits + i) * scale;
    if (p.soft_cap > 0) x = Tanh(x / p.soft_cap) * p.soft_cap;
    if (slope != 0) x += (static_cast<float>(distance + i) + LaneNumbers()) * slope;
    Store(logits + i, x);
  }

  // Mask what the row does not see in its first and last vector.
  for (int i = first; i < begin; ++i) logits[i] = -INFINITY;
  for (int i = end; i % kLanes != 0; ++i) logits[i] = -INFINITY;

  // The new maximum; a row of minus infinities keeps 0 as its reference point, and e^-inf = 0.
  Vec top = Load(logits + first);
  for (int i = first + kLanes; i < end; i += kLanes) top = Max(top, Load(logits + i));
  float new_max = *row_max;
  for (int lane = 0; lane < kLanes; ++lane) new_max = top[lane] > new_max ? top[lane] : new_max;
  const float shift = new_max == -INFINITY ? 0.0f : new_max;
  const Vec correction = Exp(Vec{} + (*row_max - shift));

  Vec sum = Load(row_sum) * correction;
  for (int i = first; i < end; i += kLanes) {
    const Vec weight = Exp(Load(logits + i) - shift);
    Store(logits + i, weight);
    sum += weight;
  }
  Store(row_sum, sum);
  if (correction[0] != 1.0f) {
    for (int64_t i = 0; i < out_width; i += kLanes) Store(out + i, Load(out + i) * correction);
  }
  *row_max = new_max;
}

// out[row] += sum over keys [from, to) of weight * value, for `count` rows from the block's row `r` on.
PA_FUNCTION void AddValues(int count, const Scratch& scratch, int r, int from, int to, float* out, int64_t width) {
  if (from >= to) return;
  Multiply<true>(count, scratch.logits + r * kTileKeys + from, kTileKeys, scratch.values + from * kPanel,
                 Scratch::kValueRows * kPanel, to - from, out + r * width, width, width);
}

// A block of up to kRows rows against the keys in the scratch, which start at position `key`.
PA_FUNCTION void AttendRows(const Params& p, const Tile& tile, const Scratch& scratch, float scale, int row,
                            int64_t key, int key_count) {
  const int64_t d = p.head_dim, width = (d + kPanel - 1) / kPanel * kPanel;
  const int count = std::min(kRows, tile.rows - row), last = count - 1;

  // What each row sees, [begin, end): both ascend with the row.
  int begin[kRows], end[kRows];
  for (int r = 0; r < count; ++r) {
    const int64_t position = tile.Position(row + r);
    begin[r] = static_cast<int>(std::clamp<int64_t>(position - p.window + 1 - key, 0, key_count));
    end[r] = static_cast<int>(std::clamp<int64_t>(position + 1 - key, 0, key_count));
  }
  if (begin[0] >= end[last]) return;

  // Logits, summed in pieces of a few dimensions, which keeps a long head's rounding errors small; then weights.
  const int first = begin[0] / kPanel * kPanel;
  for (int64_t i = 0; i < d; i += kDepth) {
    const auto multiply = i == 0 ? Multiply<false> : Multiply<true>;
    multiply(count, scratch.query + row * d + i, d, scratch.keys + first * d + i * kPanel, d * kPanel,
             std::min(kDepth, d - i), scratch.logits + first, kTileKeys, end[last] - first);
  }
  float* out = scratch.out + row * width;
  for (int r = 0; r < count; ++r) {
    if (begin[r] >= end[r]) continue;
    const float slope = p.alibi_slopes == nullptr ? 0.0f : p.alibi_slopes[tile.Head(row + r)];
    UpdateSoftmax(p, scale, slope, key - tile.Position(row + r), scratch.logits + r * kTileKeys, begin[r], end[r],
                  scratch.max + row + r, scratch.sum + (row + r) * kLanes, out + r * width, width);
  }

  // Weighted sum of the values: keys that all rows see as one product, those at the edges row by row, so that no row
  // multiplies a value that it does not see.
  int all_begin = begin[last], all_end = end[0];
  if (all_begin >= all_end) all_begin = all_end = end[last];
  for (int r = 0; r < count; ++r) AddValues(1, scratch, r, begin[r], std::min(end[r], all_begin), out, width);
  AddValues(count, scratch, 0, all_begin, all_end, out, width);
  for (int r = 0; r < count; ++r) AddValues(1, scratch, r, std::max(begin[r], all_end), end[r], out, width);
}

// Query rows as floats, or one row of float results rounded.
template <typename T>
PA_FUNCTION void LoadQuery(const Params& p, const Tile& tile, float* query) {
  for (int row = 0; row < tile.rows; ++row) {
    const T* from = static_cast<const T*>(p.query) + tile.Index(p, row) * p.head_dim;
    for (int64_t i = 0; i < p.head_dim; i += kLanes) Store(query + row * p.head_dim + i, Load(from + i));
  }
}

template <typename T>
PA_FUNCTION void StoreRow(const float* from, float scale, int64_t head_dim, T* to) {
  for (int64_t i = 0; i < head_dim; ++i) to[i] = pyxla::FromFloat<T>(from[i] * scale);
}

template <typename T, typename Cache>
PA_FUNCTION void AttendTile(const Params& p, const Tile& tile, float* buffer, float* shares) {
  const int64_t d = p.head_dim, width = (d + kPanel - 1) / kPanel * kPanel;
  const Scratch scratch(buffer, d, width);
  static_assert(kRows <= Scratch::kMaxRows && kLanes <= Scratch::kMaxLanes && kPanel <= Scratch::kMaxPanel,
                "the scratch is made for the widest instruction set");
  const Cache* key_cache = static_cast<const Cache*>(p.kv_cache) + tile.kv_head * d;
  const Cache* value_cache = key_cache + p.blocks * p.block_size * p.kv_heads * d;
  // A factor of all keys is one of the logits, a factor of all values one of the result.
  const float key_scale = p.kv_scales == nullptr ? 1.0f : p.kv_scales[tile.kv_head];
  const float value_scale = p.kv_scales == nullptr ? 1.0f : p.kv_scales[p.kv_heads + tile.kv_head];

  LoadQuery<T>(p, tile, scratch.query);
  std::fill_n(scratch.out, tile.rows * width, 0.0f);
  std::fill_n(scratch.max, tile.rows, -INFINITY);
  std::fill_n(scratch.sum, tile.rows * kLanes, 0.0f);

  int64_t offsets[2 * kTileKeys];
  for (int64_t key = tile.key_begin; key < tile.key_end; key += kTileKeys) {
    const int count = static_cast<int>(std::min<int64_t>(kTileKeys, tile.key_end - key));
    CacheOffsets(p, tile, key, offsets);
    LoadKeys(key_cache, value_cache, offsets, count, d, scratch.keys);
    LoadValues(value_cache, key_cache, offsets, count, d, scratch.values);
    for (int row = 0; row < tile.rows; row += kRows) AttendRows(p, tile, scratch, p.scale * key_scale, row, key, count);
  }

  // The result, or this range's share of it for MergeShares.
  for (int row = 0; row < tile.rows; ++row) {
    float sum = 0;
    for (int lane = 0; lane < kLanes; ++lane) sum += scratch.sum[row * kLanes + lane];
    const float* out = scratch.out + row * width;
    if (tile.share == Tile::kWhole) {
      const float factor = FinishSoftmax(p, tile, row, scratch.max[row], sum) * value_scale;
      StoreRow(out, factor, d, static_cast<T*>(p.out) + tile.Index(p, row) * d);
    } else {
      float* share = shares + tile.share + row * (d + 2);
      share[0] = scratch.max[row];
      share[1] = sum;
      for (int64_t i = 0; i < d; ++i) share[2 + i] = out[i] * value_scale;
    }
  }
}

}  // namespace pyxla::paged_attention_host::PA_NAMESPACE

#undef PA_FUNCTION
#undef PA_INLINE
#undef PA_NAMESPACE
#undef PA_TARGET
#undef PA_LANES
