#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/weights/pickle.h"

namespace lockstep::checkpoint {

/// What the opcodes of a pickle work on: a stack of values with marks, and the memo, which keeps
/// values under numbers. Throws std::runtime_error with the reason.
class PickleStack {
 public:
  using Kind = PickleValue::Kind;

  void push(PickleValue value);
  void push_items(Kind kind, std::vector<uint32_t> items);
  uint32_t pop();
  std::vector<uint32_t> pop_last(size_t count);
  void mark();
  /// What was pushed since the last mark, which goes too.
  std::vector<uint32_t> pop_to_mark();
  /// Adds to the list or dict on top.
  void extend(Kind kind, const std::vector<uint32_t>& items);
  const PickleValue& value_at(uint32_t place) const { return pickle_.values[place]; }

  /// The value on top, under this number.
  void keep(uint64_t key);
  size_t num_kept() const { return memo_.size(); }
  void recall(uint64_t key);

  /// The value on top is the whole.
  Pickle take();

 private:
  void push_place(uint32_t place);

  Pickle pickle_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, uint32_t> memo_;
};

}  // namespace lockstep::checkpoint
