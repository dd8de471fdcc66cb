#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/weights/pickle.h"

namespace lockstep::checkpoint {

/// Stack machine of a pickle: a stack of values with marks, and the memo, which stores values under
/// numbers. Throws std::runtime_error with the reason.
class PickleStack {
 public:
  using Kind = PickleValue::Kind;

  void push(PickleValue value);
  void push_items(Kind kind, std::vector<uint32_t> items);
  uint32_t pop();
  std::vector<uint32_t> pop_last(size_t count);
  void mark();
  /// Removes and returns what was pushed since the last mark, and removes the mark.
  std::vector<uint32_t> pop_to_mark();
  /// Adds items to the list or dict on top.
  void extend(Kind kind, const std::vector<uint32_t>& items);
  const PickleValue& value_at(uint32_t place) const { return pickle_.values[place]; }

  /// Stores the top value in the memo under this number.
  void keep(uint64_t key);
  size_t num_kept() const { return memo_.size(); }
  void recall(uint64_t key);

  /// Returns the pickle, whose root is the top value.
  Pickle take();

 private:
  void push_place(uint32_t place);

  Pickle pickle_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
};

}  // namespace lockstep::checkpoint
