// Vector arithmetic of one instruction set: loads, e^x, tanh, transposition, and a product of blocks.
//
// No include guard: part of paged_attention_tile.h, which says what PA_NAMESPACE, PA_TARGET and PA_LANES are.

namespace pyxla::paged_attention_host::PA_NAMESPACE {

#define PA_FUNCTION PA_TARGET static
#define PA_INLINE PA_TARGET __attribute__((always_inline)) static inline

constexpr int kLanes = PA_LANES;
static_assert((kLanes & (kLanes - 1)) == 0, "the transposition halves a square of kLanes");

typedef float Vec __attribute__((vector_size(kLanes * sizeof(float))));
typedef int32_t IntVec __attribute__((vector_size(kLanes * sizeof(int32_t))));
typedef uint32_t UintVec __attribute__((vector_size(kLanes * sizeof(uint32_t))));
typedef uint16_t HalfVec __attribute__((vector_size(kLanes * sizeof(uint16_t))));

// Two vectors wide, six rows high: twelve sums in registers, enough to hide the latency of a multiply-add.
constexpr int kPanel = 2 * kLanes;
constexpr int kRows = 6;
constexpr int64_t kDepth = 64;
static_assert(kTileKeys % kPanel == 0, "a tile of keys is whole panels");
static_assert(kTileRows % kRows == 0, "a tile of rows is whole blocks of rows");

template <typename To, typename From>
PA_INLINE To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

PA_INLINE Vec Load(const float* from) {
  Vec value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

PA_INLINE HalfVec LoadHalf(const void* from) {
  HalfVec bits;
  __builtin_memcpy(&bits, from, sizeof(bits));
  return bits;
}

PA_INLINE Vec Load(const BF16* from) { return Bits<Vec>(__builtin_convertvector(LoadHalf(from), UintVec) << 16); }

PA_INLINE Vec Load(const F16* from) {
  // The compiler's own names of these instructions: immintrin.h is half a second of every build.
#if PA_LANES == 16
  typedef short Bits16 __attribute__((vector_size(32)));
  return __builtin_ia32_vcvtph2ps512_mask(Bits<Bits16>(LoadHalf(from)), Vec{}, -1, 4 /* rounding: as it is */);
#elif PA_LANES == 8
  typedef short Bits8 __attribute__((vector_size(16)));
  return __builtin_ia32_vcvtph2ps256(Bits<Bits8>(LoadHalf(from)));
#else
  Vec value;
  for (int lane = 0; lane < kLanes; ++lane) value[lane] = pyxla::ToFloat(from[lane]);
  return value;
#endif
}

PA_INLINE Vec Load(const F8E4M3* from) {
  typedef uint8_t ByteVec __attribute__((vector_size(kLanes)));
  ByteVec bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  const IntVec bits = __builtin_convertvector(bytes, IntVec), magnitude = bits & 0x7f;
  // A subnormal is a fraction of 2^-6: form 2^-6 + fraction, then take 2^-6 away, as subnormal floats are flushed.
  const Vec subnormal = Bits<Vec>((magnitude << 20) + (121 << 23)) - 0x1p-6f;
  const IntVec normal = magnitude == 0x7f ? IntVec{} + 0x7fc00000 : (magnitude << 20) + (120 << 23);
  return Bits<Vec>((magnitude < 8 ? Bits<IntVec>(subnormal) : normal) | (bits & 0x80) << 24);
}

PA_INLINE void Store(float* to, Vec value) { __builtin_memcpy(to, &value, sizeof(value)); }

PA_INLINE Vec LaneNumbers() {
  Vec numbers;
  for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = static_cast<float>(lane);
  return numbers;
}

PA_INLINE Vec Max(Vec a, Vec b) { return a > b ? a : b; }

// e^x for x <= 0, relative error below 1e-7; 0 where e^x is subnormal; NaN stays NaN.
PA_INLINE Vec Exp(Vec x) {
  // e^x = 2^n e^r with |r| <= ln(2) / 2. Adding 1.5 * 2^23 leaves n in the low bits.
  constexpr float kShift = 12582912.0f, kLog2E = 1.44269504f, kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  const Vec shifted = x * kLog2E + kShift;
  const Vec n = shifted - kShift;
  const Vec r = (x - n * kLn2High) - n * kLn2Low;
  // e^r = 1 + r + r^2 q(r); q by weighted least squares, truncation error 3e-9.
  Vec q = r * 1.38145964e-3f + 8.36871751e-3f;
  q = q * r + 4.16683890e-2f;
  q = q * r + 1.66665211e-1f;
  q = q * r + 4.99999940e-1f;
  const Vec power = Bits<Vec>((Bits<IntVec>(shifted) + 127) << 23);
  constexpr float kSmallest = -87.3365402f;  // ln(2^-126)
  return x < kSmallest ? Vec{} : (q * (r * r) + r + 1.0f) * power;
}

// Relative error below 2e-7.
PA_INLINE Vec Tanh(Vec x) {
  const Vec magnitude = Bits<Vec>(Bits<IntVec>(x) & 0x7fffffff);
  const IntVec sign = Bits<IntVec>(x) & INT32_MIN;
  const Vec e = Exp(magnitude * -2.0f);
  const Vec large = (1.0f - e) / (1.0f + e);
  // Near 0 the difference above cancels: x + x^3 q(x^2), truncation error 5e-9.
  const Vec square = x * x;
  Vec q = square * -5.70497848e-3f + 2.06390787e-2f;
  q = q * square - 5.37397116e-2f;
  q = q * square + 1.33314416e-1f;
  q = q * square - 3.33332807e-1f;
  return magnitude < 0.625f ? x + x * square * q : Bits<Vec>(Bits<IntVec>(large) | sign);
}

// Swaps the off-diagonal squares of half the size, then of a quarter, and so on.
template <int kHalf, int... kLane>
PA_INLINE void TransposeStep(Vec* rows, std::integer_sequence<int, kLane...>) {
  for (int i = 0; i < kLanes; ++i) {
    if (i & kHalf) continue;
    const Vec a = rows[i], b = rows[i + kHalf];
    rows[i] = __builtin_shufflevector(a, b, (kLane & kHalf ? kLanes + kLane - kHalf : kLane)...);
    rows[i + kHalf] = __builtin_shufflevector(a, b, (kLane & kHalf ? kLanes + kLane : kLane + kHalf)...);
  }
}

PA_INLINE void Transpose(Vec (&rows)[kLanes]) {
  constexpr auto kSequence = std::make_integer_sequence<int, kLanes>();
  if constexpr (kLanes > 8) TransposeStep<8>(rows, kSequence);
  if constexpr (kLanes > 4) TransposeStep<4>(rows, kSequence);
  TransposeStep<2>(rows, kSequence);
  TransposeStep<1>(rows, kSequence);
}

// out[row][column] = (kAdd ? out[row][column] : 0) + sum_k a[row][k] * b[k][column], for columns [0, width), where b is
// panels of kPanel columns, b_stride apart.
//
// The old value is added last: the rounding errors of a long context grow with its tiles, not with its keys.
template <int kCount, bool kAdd>
PA_FUNCTION void MultiplyBlock(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth,
                               float* out, int64_t out_stride, int64_t width) {
  for (int64_t column = 0; column < width; column += kPanel, b += b_stride, out += kPanel) {
    Vec sum[kCount][2] = {};
    for (int64_t k = 0; k < depth; ++k) {
      const Vec right[2] = {Load(b + k * kPanel), Load(b + k * kPanel + kLanes)};
      for (int r = 0; r < kCount; ++r) {
        const float left = a[r * a_stride + k];
        for (int c = 0; c < 2; ++c) sum[r][c] += left * right[c];
      }
    }
    for (int r = 0; r < kCount; ++r) {
      for (int c = 0; c < 2; ++c) {
        float* to = out + r * out_stride + c * kLanes;
        Store(to, kAdd ? Load(to) + sum[r][c] : sum[r][c]);
      }
    }
  }
}

template <bool kAdd>
PA_FUNCTION __attribute__((noinline)) void Multiply(int rows, const float* a, int64_t a_stride, const float* b,
                                                    int64_t b_stride, int64_t depth, float* out, int64_t out_stride,
                                                    int64_t width) {
  static_assert(kRows == 6, "one case per count of rows");
  switch (rows) {
    case 6: return MultiplyBlock<6, kAdd>(a, a_stride, b, b_stride, depth, out, out_stride, width);
    case 5: return MultiplyBlock<5, kAdd>(a, a_stride, b, b_stride, depth, out, out_stride, width);
    case 4: return MultiplyBlock<4, kAdd>(a, a_stride, b, b_stride, depth, out, out_stride, width);
    case 3: return MultiplyBlock<3, kAdd>(a, a_stride, b, b_stride, depth, out, out_stride, width);
    case 2: return MultiplyBlock<2, kAdd>(a, a_stride, b, b_stride, depth, out, out_stride, width);
    case 1: return MultiplyBlock<1, kAdd>(a, a_stride, b, b_stride, depth, out, out_stride, width);
  }
}

}  // namespace pyxla::paged_attention_host::PA_NAMESPACE
