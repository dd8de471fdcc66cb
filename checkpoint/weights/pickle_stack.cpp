#include "checkpoint/weights/pickle_stack.h"

#include <stdexcept>

#include <fmt/format.h>

namespace lockstep::checkpoint {
namespace {

// The memo and the stack share values by index, so a small pickle could otherwise unfold into much
// memory.
constexpr size_t kMaxValues = 2'000'000, kMaxWaiting = 1'000'000, kMaxKept = 1'000'000;
constexpr size_t kMaxMarks = 10'000;

[[noreturn]] void refuse_values(const std::string& why) { throw std::runtime_error(why); }

}  // namespace

void PickleStack::push(PickleValue value) {
  if (pickle_.values.size() >= kMaxValues)
    refuse_values(fmt::format("it holds more than {} values", kMaxValues));
  push_place(static_cast<uint32_t>(pickle_.values.size()));
  pickle_.values.push_back(std::move(value));
}

void PickleStack::push_place(uint32_t place) {
  if (stack_.size() >= kMaxWaiting)
    refuse_values(fmt::format("more than {} values wait for their collection", kMaxWaiting));
  stack_.push_back(place);
}

void PickleStack::push_items(Kind kind, std::vector<uint32_t> items) {
  push({.kind = kind, .items = std::move(items)});
}

void PickleStack::mark() {
  if (marks_.size() >= kMaxMarks)
    refuse_values(fmt::format("its collections are nested deeper than {}", kMaxMarks));
  marks_.push_back(stack_.size());
}

uint32_t PickleStack::pop() {
  // A value below the last mark belongs to the collection outside.
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) refuse_values("a value is missing");
  const uint32_t place = stack_.back();
  stack_.pop_back();
  return place;
}

std::vector<uint32_t> PickleStack::pop_last(size_t count) {
  std::vector<uint32_t> items(count);
  for (size_t i = count; i-- > 0;) items[i] = pop();
  return items;
}

std::vector<uint32_t> PickleStack::pop_to_mark() {
  if (marks_.empty()) refuse_values("a mark is missing");
  const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<uint32_t> items(begin, stack_.end());
  stack_.erase(begin, stack_.end());
  marks_.pop_back();
  return items;
}

void PickleStack::extend(Kind kind, const std::vector<uint32_t>& items) {
  const uint32_t place = pop();
  PickleValue& all = pickle_.values[place];
  if (all.kind != kind || (kind == Kind::kDict && items.size() % 2 != 0))
    refuse_values("items are added to what is no such collection");
  all.items.insert(all.items.end(), items.begin(), items.end());
  stack_.push_back(place);
}

void PickleStack::keep(uint64_t key) {
  const uint32_t top = pop();
  stack_.push_back(top);
  memo_[key] = top;
  if (memo_.size() > kMaxKept)
    refuse_values(fmt::format("it keeps more than {} values for later", kMaxKept));
}

void PickleStack::recall(uint64_t key) {
  const auto found = memo_.find(key);
  if (found == memo_.end()) refuse_values("a value is named that was not kept");
  push_place(found->second);
}

Pickle PickleStack::take() {
  if (!marks_.empty()) refuse_values("it ends inside a collection");
  pickle_.root = pop();
  return std::move(pickle_);
}

}  // namespace lockstep::checkpoint
