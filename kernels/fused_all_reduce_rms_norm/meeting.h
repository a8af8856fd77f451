// Where the devices of a group meet: each on a thread of this process, once per call.
//
// A device enters with an item and waits for the others; then it has the items of all. It leaves when it no longer
// reads them, and returns when all have left: so an item may point to an operand of the call.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace fused_all_reduce_rms_norm {

// Seconds; a clock counts nanoseconds in 64 bits.
inline constexpr double kLongest = 1e9;

/** How a device's entry ended. */
enum class Entry { kMet, kLate, kBroken, kTwice };

/** Of one group and channel. Item is copied. */
template <typename Item>
class Meeting {
 public:
  explicit Meeting(size_t size) : items_(size), entered_(size), left_(size), inside_(size) {}

  /**
   * Waits until all have entered as often as this place.
   *
   * kMet: `items` has those of all, in order of places, and `Leave` must follow. kLate: the places that `items` leaves
   * out of `came` did not come in time; a device cannot come to a call that others have given up, so each later entry
   * is kBroken. kTwice: the place is still inside, in a call that runs at the same time.
   */
  Entry Enter(size_t place, const Item& item, double seconds, std::vector<Item>* items, std::vector<size_t>* came) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (broken_) return Entry::kBroken;
    if (inside_[place]) return Entry::kTwice;
    inside_[place] = true;
    items_[place] = item;
    const uint64_t call = ++entered_[place];
    changed_.notify_all();
    const auto all = [&](const std::vector<uint64_t>& counts) {
      for (uint64_t count : counts) {
        if (count < call) return false;
      }
      return true;
    };
    changed_.wait_for(lock, std::chrono::duration<double>(std::min(seconds, kLongest)),
                      [&] { return broken_ || all(entered_); });
    if (!all(entered_)) {
      const bool first = !std::exchange(broken_, true);
      for (size_t other = 0; other < entered_.size(); ++other) {
        if (entered_[other] >= call) came->push_back(other);
      }
      changed_.notify_all();
      return first ? Entry::kLate : Entry::kBroken;
    }
    *items = items_;
    return Entry::kMet;
  }

  /** Waits until all that met have left. Each of them does, so there is no limit. */
  void Leave(size_t place) {
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t call = ++left_[place];
    changed_.notify_all();
    changed_.wait(lock, [&] {
      for (uint64_t count : left_) {
        if (count < call) return false;
      }
      return true;
    });
    inside_[place] = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Item> items_;
  std::vector<uint64_t> entered_, left_;
  std::vector<bool> inside_;
  bool broken_ = false;
};

/** The one meeting of these devices on this channel. It is never freed: a thread may wait there when the process ends.
 */
template <typename Item>
Meeting<Item>& MeetingOf(const std::vector<int64_t>& devices, int64_t channel) {
  static auto* const mutex = new std::mutex;
  static auto* const meetings = new std::map<std::pair<std::vector<int64_t>, int64_t>, std::unique_ptr<Meeting<Item>>>;
  std::lock_guard<std::mutex> lock(*mutex);
  auto& meeting = (*meetings)[{devices, channel}];
  if (!meeting) meeting = std::make_unique<Meeting<Item>>(devices.size());
  return *meeting;
}

}  // namespace fused_all_reduce_rms_norm
