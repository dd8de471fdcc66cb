#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/device/device_stager.h"
#include "base/tensors/state_list.h"

namespace lockstep::checkpoint {

/// State at the start of a save. Everything that may change is copied here.
class Snapshot {
 public:
  explicit Snapshot(StateList list) : state_(std::move(list)) {}
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const StateList& state() const { return state_; }

  /// Copies texts and tensors that are not steady.
  void copy_what_may_change() {
    copy_texts();
    for (StateEntry& entry : state_)
      if (entry.tensor.defined() && !entry.steady) entry.tensor = entry.tensor.detach().clone();
  }

  /// Copies everything to the host. What is on the stager's device has arrived when the result says
  /// so. Tensors that are not steady are first copied on the device, so that only updates must wait
  /// for the stager.
  std::unique_ptr<StagedCopy> copy_all(DeviceStager& stager) {
    copy_texts();
    std::vector<StagedPart> parts;
    for (const Place& place : places_on(stager.device()))
      parts.push_back({place.is_steady ? *place.tensor : place.tensor->detach().clone(),
                       place.is_bits ? std::nullopt : place.entry->held});
    std::unique_ptr<StagedCopy> copy = stager.begin(parts);
    copy_what_is_not_on(stager.device());
    size_t next = 0;
    for (const Place& place : places_on(stager.device())) *place.tensor = copy->copies()[next++];
    return copy;
  }

  int64_t bytes_on(at::Device device) {
    std::vector<StagedPart> parts;
    for (const Place& place : places_on(device)) parts.push_back({*place.tensor});
    return DeviceStager::bytes_of(parts);
  }

 private:
  struct Place {
    StateEntry* entry = nullptr;
    at::Tensor* tensor = nullptr;
    bool is_bits = false, is_steady = false;
  };

  std::vector<Place> places_on(at::Device device) {
    std::vector<Place> places;
    for (StateEntry& entry : state_) {
      if (entry.tensor.defined() && entry.tensor.device() == device)
        places.push_back({&entry, &entry.tensor, false, entry.steady});
      if (entry.kept_bits.defined() && entry.kept_bits.device() == device)
        places.push_back({&entry, &entry.kept_bits, true, true});
    }
    return places;
  }

  /// Copies what is on the host. The host changes it as soon as it enqueues an update, long before
  /// the device executes that.
  void copy_what_is_not_on(at::Device device) {
    std::map<const void*, at::Tensor> copied_bits;  // several entries share the bits of one mask
    for (StateEntry& entry : state_) {
      if (entry.tensor.defined() && entry.tensor.device() != device)
        entry.tensor = entry.tensor.detach().clone();
      if (!entry.kept_bits.defined() || entry.kept_bits.device() == device) continue;
      at::Tensor& copy = copied_bits[entry.kept_bits.const_data_ptr()];
      if (!copy.defined()) copy = entry.kept_bits.clone();
      entry.kept_bits = copy;
    }
  }

  void copy_texts() {
    for (StateEntry& entry : state_)
      if (entry.text != nullptr) entry.text = &texts_.emplace_back(*entry.text);
  }

  StateList state_;
  std::deque<std::string> texts_;
};

}  // namespace lockstep::checkpoint
