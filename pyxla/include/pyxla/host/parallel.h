// A parallel loop on XLA's own thread pool, so that an op never brings threads that compete with XLA's.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>

#include "pyxla/ffi/ffi.h"

namespace pyxla {

/**
 * Runs body(begin, end) over [0, n) in pieces of at most `grain` and returns when all are done. An exception of `body`
 * ends the loop early and is thrown again here.
 *
 * The calling thread takes pieces too and waits only for pieces that a thread has already begun: so the loop ends even
 * when the handler itself runs on the pool's last free thread.
 */
template <typename Body>
void ParallelFor(ffi::ThreadPool& pool, int64_t n, int64_t grain, const Body& body) {
  grain = std::max<int64_t>(grain, 1);
  const int64_t pieces = (n + grain - 1) / grain;
  if (pieces <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }

  struct Loop {
    std::atomic<int64_t> next{0};
    std::atomic<int64_t> done{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::condition_variable all_done;
    std::exception_ptr exception;
  };
  auto loop = std::make_shared<Loop>();
  // A helper that starts late finds no piece left and never touches `body`, which may be gone by then.
  auto take_pieces = [loop, pieces, grain, n, &body] {
    for (int64_t piece; (piece = loop->next.fetch_add(1)) < pieces;) {
      if (!loop->failed.load(std::memory_order_relaxed)) {
        try {
          body(piece * grain, std::min(n, (piece + 1) * grain));
        } catch (...) {
          if (!loop->failed.exchange(true)) loop->exception = std::current_exception();
        }
      }
      if (loop->done.fetch_add(1) + 1 == pieces) {
        std::lock_guard<std::mutex> lock(loop->mutex);
        loop->all_done.notify_one();
      }
    }
  };

  const int64_t helpers = std::min(pieces, pool.num_threads()) - 1;
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(decltype(take_pieces)(take_pieces));
  take_pieces();
  std::unique_lock<std::mutex> lock(loop->mutex);
  loop->all_done.wait(lock, [&] { return loop->done.load() == pieces; });
  if (loop->exception) std::rethrow_exception(loop->exception);
}

}  // namespace pyxla
