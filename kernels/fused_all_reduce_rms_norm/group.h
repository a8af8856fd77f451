// The group of a device, and the errors of its meetings, for both platforms' handlers.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "fused_all_reduce_rms_norm/fused_all_reduce_rms_norm.h"
#include "fused_all_reduce_rms_norm/meeting.h"
#include "pyxla/ffi/checks.h"

namespace fused_all_reduce_rms_norm {

inline constexpr char kOp[] = "fused_all_reduce_rms_norm";

// The devices that add up, in ascending order, and this one's place among them. One device, or none: no group.
struct Group {
  std::vector<int64_t> devices;
  size_t place = 0;
};

// `groups` has the number of each device's group, by the device's ordinal; it is empty for one device.
inline ffi::Error FindGroup(ffi::Span<const int64_t> groups, int64_t device, Group* group) {
  if (groups.size() == 0) return ffi::Error::Success();
  if (device < 0 || device >= static_cast<int64_t>(groups.size())) {
    return pyxla::Mismatch(kOp, "groups", "a group of device " + std::to_string(device),
                           std::to_string(groups.size()) + " devices");
  }
  for (int64_t other = 0; other < static_cast<int64_t>(groups.size()); ++other) {
    if (groups[other] != groups[device]) continue;
    if (other == device) group->place = group->devices.size();
    group->devices.push_back(other);
  }
  if (group->devices.size() <= kMaxParts) return ffi::Error::Success();
  return pyxla::Mismatch(kOp, "groups", "at most " + std::to_string(kMaxParts) + " devices in a group",
                         group->devices.size());
}

// Enters the group's meeting; `items` are those of all devices.
template <typename Item>
ffi::Error Enter(const Group& group, int64_t channel, double timeout, const Item& item, std::vector<Item>* items) {
  std::vector<size_t> came;
  const auto list = [&](const std::vector<size_t>& places) {
    std::string text;
    for (size_t place : places) text += (text.empty() ? "" : ", ") + std::to_string(group.devices[place]);
    return text;
  };
  const auto entry = MeetingOf<Item>(group.devices, channel).Enter(group.place, item, timeout, items, &came);
  if (entry == Entry::kMet) return ffi::Error::Success();
  std::vector<size_t> all(group.devices.size());
  for (size_t place = 0; place < all.size(); ++place) all[place] = place;
  if (entry == Entry::kTwice) {
    return pyxla::Mismatch(kOp, "channel", "one of its own for each call that runs at the same time",
                           std::to_string(channel) + " twice");
  }
  std::ostringstream expected;
  expected << "devices " << list(all) << " within " << timeout << " s";
  const std::string got = entry == Entry::kLate ? "devices " + list(came) : "a call that one of them gave up";
  return pyxla::Mismatch(kOp, "timeout", expected.str(), got);
}

}  // namespace fused_all_reduce_rms_norm
