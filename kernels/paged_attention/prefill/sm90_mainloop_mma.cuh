// The consumer warpgroups of the prefill kernel for sm_90a.
#pragma once

#include "paged_attention/prefill/sm90_splits.cuh"

namespace paged_attention {
namespace prefill {
namespace sm90 {

// Issues S = Q K^T; `q` and `k` are the warpgroup's rows of Q and the stage of K.
template <typename T, int kHeadDim, int kKeyColumns>
__device__ inline void IssueQk(Accumulator<kKeyColumns>& s, SwizzledTile<kHeadDim> q, SwizzledTile<kHeadDim> k) {
  warpgroup_arrive();
#pragma unroll
  for (int i = 0; i < kHeadDim; i += 16) wgmma_ss<T>(s, q.KMajor(i), k.KMajor(i), i > 0);
  warpgroup_commit_batch();
}

// Issues O += P V; `v` is the stage of V.
template <typename T, int kHeadDim, int kSteps>
__device__ inline void IssuePv(Accumulator<kHeadDim / 8>& o, const AFragment (&frag_p)[kSteps],
                               SwizzledTile<kHeadDim> v) {
  warpgroup_arrive();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    if constexpr (kHeadDim % 128 == 0) {
      wgmma_rs<T, 0, 16>(o, frag_p[i], v.MnMajor(16 * i, 0));
      if constexpr (kHeadDim == 256) wgmma_rs<T, 16, 16>(o, frag_p[i], v.MnMajor(16 * i, 128));
    } else {
      wgmma_rs<T, 0, 8>(o, frag_p[i], v.MnMajor(16 * i, 0));
      if constexpr (kHeadDim == 192) {
        wgmma_rs<T, 8, 8>(o, frag_p[i], v.MnMajor(16 * i, 64));
        wgmma_rs<T, 16, 8>(o, frag_p[i], v.MnMajor(16 * i, 128));
      }
    }
  }
  warpgroup_commit_batch();
}

// P as the A operand of P V: the accumulator's layout is that of A in registers.
template <typename T, int kKeyColumns>
__device__ inline void PackP(const Accumulator<kKeyColumns>& s, AFragment (&frag_p)[kKeyColumns / 2]) {
#pragma unroll
  for (int j = 0; j < kKeyColumns; ++j) {
    frag_p[j / 2][j % 2 * 2] = Pack<T>(s[j][0], s[j][1]);
    frag_p[j / 2][j % 2 * 2 + 1] = Pack<T>(s[j][2], s[j][3]);
  }
}

template <int kColumns>
__device__ inline void RescaleO(Accumulator<kColumns>& o, const float (&rescale)[2]) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[j][i] *= rescale[i / 2];
  }
}

// A consumer warpgroup: computes 64 rows of each work tile.
template <typename S>
__device__ inline void RunConsumer(const Params& p, const Plan& plan, const Workspace& workspace,
                                   SharedStorage<S>& shared, uint32_t queries, uint32_t keys, uint32_t values) {
  using T = typename S::T;
  constexpr int kHeadDim = S::kHeadDim, kColumns = kHeadDim / 8, kKeyColumns = S::kKeys / 8;
  const int warpgroup = threadIdx.x / kWarpgroupSize, lane = threadIdx.x % kWarpSize;
  const int first_row = threadIdx.x / kWarpSize * 16 + lane / 4;
  ScoreMod score_mod(p, p.scale);
  float value_scale = 1;
  PipelineState<> work_ring, key_ring, value_ring;
  PipelineState<S::kQueryStages> query_ring;
  uint32_t fixed_phases = 0;  // a bit for each stage

  // Turns of two consumers: named barrier 1 + w lets warpgroup w issue its MMAs.
  const auto wait_for_turn = [&] { bar_sync(1 + warpgroup, S::kConsumerThreads); };
  const auto give_turn = [&] { bar_arrive(2 - warpgroup, S::kConsumerThreads); };
  if (S::kOverlaps && warpgroup == 1) give_turn();

  for (;;) {
    const WorkTile work = NextWorkTile(shared, work_ring);
    const Tile& tile = work.tile;
    // To the compiler a branch by what is in shared memory is divergent: with shuffles after the loop it would wait for
    // each wgmma.
    if (WarpUniform(work.is_last)) return;
    if (S::kIsFloat8 && p.kv_scales != nullptr) {
      score_mod = ScoreMod(p, p.scale * p.kv_scales[work.kv_head]);
      value_scale = p.kv_scales[p.kv_heads + work.kv_head];
    }

    const auto find_row = [&](int r) { return FindRow(plan, tile, work.kv_head, first_row + 8 * r); };
    const int positions[2] = {find_row(0).position, find_row(1).position};
    const int first = tile.key_begin / S::kKeys, last = (tile.key_end - 1) / S::kKeys;
    float s[kKeyColumns][4], o[kColumns][4] = {}, rescale[2];
    uint32_t frag_p[kKeyColumns / 2][4];
    Softmax softmax;

    const auto issue_qk = [&] {
      const SwizzledTile<kHeadDim> k{WarpUniform(keys + key_ring.Stage() * S::kTileBytes)};
      const uint32_t query = queries + query_ring.Stage() * S::kQueryBytes;
      IssueQk<T>(s, SwizzledTile<kHeadDim>{WarpUniform(query + warpgroup * 8 * k.kGroupBytes)}, k);
    };
    const auto issue_pv = [&] {
      IssuePv<T>(o, frag_p, SwizzledTile<kHeadDim>{WarpUniform(values + value_ring.Stage() * S::kTileBytes)});
    };
    const auto wait_for_v = [&](int t) {
      if (S::kIsFloat8 || IsFull<S::kKeys>(p, tile, t)) {
        mbarrier_wait(At(shared.v_full, value_ring), value_ring.Phase());
      } else {
        mbarrier_wait(At(shared.v_fixed, value_ring), fixed_phases >> value_ring.Stage() & 1);
        fixed_phases ^= 1 << value_ring.Stage();
      }
    };
    const auto release_v = [&](int t) {
      if (!IsFull<S::kKeys>(p, tile, t)) {
        const uint8_t (&has_nonfinite)[128] = shared.has_nonfinite[value_ring.Stage()];
        for (int i = 0; i < S::kKeys; i += kWarpSize) {
          for (unsigned found = __ballot_sync(kAllLanes, has_nonfinite[i + lane]); found; found &= found - 1) {
            const int key = t * S::kKeys + i + __ffs(found) - 1;
            const int64_t block = p.block_tables[tile.seq * p.max_blocks + key / p.block_size];
            const int64_t slot = (p.blocks + block) * p.block_size + key % p.block_size;
            const auto* from =
                static_cast<const typename S::Kv*>(p.kv_cache) + (slot * p.kv_heads + work.kv_head) * kHeadDim;
            AddNonFinite(o, from, positions, score_mod.window, key, kHeadDim);
          }
        }
      }
      mbarrier_arrive(At(shared.v_empty, value_ring));
      ++value_ring.count;
    };
    // S becomes P.
    const auto softmax_step = [&](int t) {
      const int key = t * S::kKeys + 2 * (lane % 4);
      if (!score_mod.is_plain) {
        float slopes[2] = {};
        for (int r = 0; r < 2 && p.alibi_slopes; ++r) slopes[r] = p.alibi_slopes[find_row(r).head];
        score_mod.Apply(s, positions, slopes, key);
      }
      if (!IsFull<S::kKeys>(p, tile, t)) score_mod.Mask(s, positions, key);
      softmax.Online(s, score_mod.factor, rescale);
    };

    const auto finish_qk = [&] {
      warpgroup_fence_operand(s);
      mbarrier_arrive(At(shared.k_empty, key_ring));
      ++key_ring.count;
    };
    const auto finish_pv = [&](int t) {
      warpgroup_wait<0>();
      warpgroup_fence_operand(o);
      release_v(t);
    };

    mbarrier_wait(At(shared.q_full, query_ring), query_ring.Phase());
    if constexpr (S::kOverlaps) {
      // Prologue: Q K^T of the last KV tile.
      mbarrier_wait(At(shared.k_full, key_ring), key_ring.Phase());
      issue_qk();
      warpgroup_wait<0>();
      finish_qk();
      softmax_step(last);
      PackP<T>(s, frag_p);

      // Q K^T of KV tile t and P V of tile t + 1 run together.
      for (int t = last - 1; t >= first; --t) {
        mbarrier_wait(At(shared.k_full, key_ring), key_ring.Phase());
        wait_for_turn();
        issue_qk();
        wait_for_v(t + 1);
        issue_pv();
        give_turn();
        warpgroup_wait<1>();
        finish_qk();
        softmax_step(t);
        // l is never negative, so this is never taken. But the branch needs P: without it ptxas forms P after the wait.
        if (softmax.l[0] < 0 || softmax.l[1] < 0) __trap();
        finish_pv(t + 1);
        RescaleO(o, rescale);
        PackP<T>(s, frag_p);
      }
    } else {
      for (int t = last;; --t) {
        mbarrier_wait(At(shared.k_full, key_ring), key_ring.Phase());
        issue_qk();
        warpgroup_wait<0>();
        finish_qk();
        softmax_step(t);
        RescaleO(o, rescale);
        PackP<T>(s, frag_p);
        if (t == first) break;
        wait_for_v(t);
        issue_pv();
        finish_pv(t);
      }
    }
    mbarrier_arrive(At(shared.q_empty, query_ring));
    ++query_ring.count;

    // Tail: P V of the first KV tile.
    wait_for_v(first);
    issue_pv();
    finish_pv(first);
    if (tile.splits > 1) {
      SplitStore<S>(p, plan, workspace, shared).Store(work, o, first_row, softmax, score_mod.factor);
      continue;
    }
    const Row rows[2] = {find_row(0), find_row(1)};
    StoreRows<T>(p, o, rows, softmax, score_mod.factor, value_scale);
  }
}

}  // namespace sm90
}  // namespace prefill
}  // namespace paged_attention
