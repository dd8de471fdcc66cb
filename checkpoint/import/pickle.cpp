// Reader of Python pickles, and its stack.
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/import/torch_file.h"

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

namespace {

// The memo and the stack share values by index, so a small pickle could otherwise unfold into much
// memory.
constexpr size_t kMaxValues = 2'000'000, kMaxWaiting = 1'000'000, kMaxKept = 1'000'000;
constexpr size_t kMaxMarks = 10'000;

[[noreturn]] void refuse_values(const std::string& why) { throw std::runtime_error(why); }

}  // namespace

void PickleStack::push(PickleValue value) {
  if (pickle_.values.size() >= kMaxValues)
    refuse_values(fmt::format("it contains more than {} values", kMaxValues));
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
    refuse_values("items are added to something that is not a collection");
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
  if (found == memo_.end()) refuse_values("a value is referenced that was not stored");
  push_place(found->second);
}

Pickle PickleStack::take() {
  if (!marks_.empty()) refuse_values("it ends inside a collection");
  pickle_.root = pop();
  return std::move(pickle_);
}

// A pickle is a program for a stack machine. This interpreter only builds values: a call is
// recorded, never made.
// Opcodes are written as in Lib/pickletools.py: printable ones as characters, the others in hex.

namespace {

using Kind = PickleValue::Kind;

constexpr uint64_t kNewestProtocol = 5;

[[noreturn]] void refuse_pickle(const std::string& why) { throw std::runtime_error(why); }

class PickleReader {
 public:
  PickleReader(std::string_view bytes, AllowGlobal allow) : bytes_(bytes), allow_(allow) {}

  Pickle read() {
    for (;;) {
      const auto opcode = static_cast<uint8_t>(take(1).front());
      if (opcode == '.') return stack_.take();
      if (!is_constant(opcode) && !is_collection(opcode) && !is_memo(opcode) && !is_object(opcode))
        refuse_pickle(fmt::format("opcode 0x{:02x} is not supported", opcode));
    }
  }
  size_t place() const { return place_; }

 private:
  std::string_view take(uint64_t num_bytes) {
    // Subtract instead of adding: a hostile length could overflow.
    if (num_bytes > bytes_.size() - place_) refuse_pickle("it ends too early");
    const std::string_view taken = bytes_.substr(place_, num_bytes);
    place_ += num_bytes;
    return taken;
  }
  uint64_t take_number(size_t num_bytes) {  // little-endian
    uint64_t value = 0;
    std::memcpy(&value, take(num_bytes).data(), num_bytes);
    return value;
  }
  std::string_view take_line() {
    const size_t end = bytes_.find('\n', place_);
    if (end == std::string_view::npos) refuse_pickle("a name has no end");
    const std::string_view line = take(end - place_);
    take(1);
    return line;
  }

  void push_number(Kind kind, int64_t number) { stack_.push({.kind = kind, .number = number}); }
  void push_text(uint64_t num_bytes) {
    stack_.push({.kind = Kind::kText, .text = take(num_bytes)});
  }
  void push_long(uint64_t num_bytes) {
    const std::string_view digits = take(num_bytes);
    // Integers of more than 8 bytes are never sizes or strides, so only their presence counts.
    if (digits.size() > 8) return stack_.push({.kind = Kind::kOther});
    int64_t value = !digits.empty() && static_cast<int8_t>(digits.back()) < 0 ? -1 : 0;
    std::memcpy(&value, digits.data(), digits.size());
    push_number(Kind::kInt, value);
  }

  bool is_constant(uint8_t opcode) {
    switch (opcode) {
      case 'N':
        return stack_.push({.kind = Kind::kNone}), true;
      case 0x88:
      case 0x89:
        return push_number(Kind::kBool, opcode == 0x88 ? 1 : 0), true;
      case 'J':
        return push_number(Kind::kInt, static_cast<int32_t>(take_number(4))), true;
      case 'K':
        return push_number(Kind::kInt, static_cast<int64_t>(take_number(1))), true;
      case 'M':
        return push_number(Kind::kInt, static_cast<int64_t>(take_number(2))), true;
      case 0x8a:
        return push_long(take_number(1)), true;
      // BINFLOAT: never a size or stride, so its value is dropped.
      case 'G':
        return take(8), stack_.push({.kind = Kind::kOther}), true;
      case 0x8c:
      case 'U':
      case 'C':
        return push_text(take_number(1)), true;
      case 'X':
      case 'T':
      case 'B':
        return push_text(take_number(4)), true;
      case 0x8d:
        return push_text(take_number(8)), true;
      default:
        return false;
    }
  }

  bool is_collection(uint8_t opcode) {
    switch (opcode) {
      case '(':
        return stack_.mark(), true;
      case ')':
        return stack_.push_items(Kind::kTuple, {}), true;
      case ']':
      case 0x8f:  // a set
        return stack_.push_items(Kind::kList, {}), true;
      case '}':
        return stack_.push_items(Kind::kDict, {}), true;
      case 't':
        return stack_.push_items(Kind::kTuple, stack_.pop_to_mark()), true;
      case 0x85:
      case 0x86:
      case 0x87:
        return stack_.push_items(Kind::kTuple, stack_.pop_last(opcode - 0x84U)), true;
      case 'a':
        return stack_.extend(Kind::kList, stack_.pop_last(1)), true;
      case 'e':
      case 0x90:
        return stack_.extend(Kind::kList, stack_.pop_to_mark()), true;
      case 0x91:  // a frozenset
        return stack_.push_items(Kind::kList, stack_.pop_to_mark()), true;
      case 's':
        return stack_.extend(Kind::kDict, stack_.pop_last(2)), true;
      case 'u':
        return stack_.extend(Kind::kDict, stack_.pop_to_mark()), true;
      default:
        return false;
    }
  }

  bool is_memo(uint8_t opcode) {
    switch (opcode) {
      case 'q':
        return stack_.keep(take_number(1)), true;
      case 'r':
        return stack_.keep(take_number(4)), true;
      case 0x94:
        return stack_.keep(stack_.num_kept()), true;
      case 'h':
        return stack_.recall(take_number(1)), true;
      case 'j':
        return stack_.recall(take_number(4)), true;
      case 0x80:
        if (take_number(1) > kNewestProtocol) refuse_pickle("its protocol is newer than 5");
        return true;
      case 0x95:  // FRAME: a length that adds no information
        return take(8), true;
      default:
        return false;
    }
  }

  void push_global(std::string_view module, std::string_view name) {
    // Checked when the global is named, so that nothing after it is even parsed.
    if (!allow_(module, name))
      refuse_pickle(
          fmt::format("it needs Python's '{}.{}'", module.substr(0, 80), name.substr(0, 80)));
    stack_.push({.kind = Kind::kGlobal, .text = module, .name = name});
  }
  void push_stack_global() {
    const std::vector<uint32_t> names = stack_.pop_last(2);
    const PickleValue &module = stack_.value_at(names[0]), &name = stack_.value_at(names[1]);
    if (module.kind != Kind::kText || name.kind != Kind::kText)
      refuse_pickle("a global has no name");
    push_global(module.text, name.text);
  }
  void push_call(std::vector<uint32_t> function_and_arguments) {
    const PickleValue& function = stack_.value_at(function_and_arguments[0]);
    const PickleValue& arguments = stack_.value_at(function_and_arguments[1]);
    if (function.kind != Kind::kGlobal || arguments.kind != Kind::kTuple)
      refuse_pickle("a call of something that is not a function, or without arguments");
    const bool is_dict = function.text == "collections" &&
                         (function.name == "OrderedDict" || function.name == "defaultdict");
    if (!is_dict) return stack_.push_items(Kind::kCall, std::move(function_and_arguments));
    if (arguments.items.size() > (function.name == "defaultdict" ? 1 : 0))  // the factory
      refuse_pickle(
          fmt::format("a {} is created with items instead of being filled", function.name));
    stack_.push_items(Kind::kDict, {});
  }

  bool is_object(uint8_t opcode) {
    switch (opcode) {
      case 'c': {
        const std::string_view module = take_line();
        return push_global(module, take_line()), true;
      }
      case 0x93:
        return push_stack_global(), true;
      case 'R':
        return push_call(stack_.pop_last(2)), true;
      case 'b':
        return static_cast<void>(stack_.pop()), true;
      case 'Q':
        return stack_.push_items(Kind::kPersistent, stack_.pop_last(1)), true;
      default:
        return false;
    }
  }

  const std::string_view bytes_;
  const AllowGlobal allow_;
  size_t place_ = 0;
  PickleStack stack_;
};

}  // namespace

Pickle read_pickle(std::string_view bytes, AllowGlobal allow) {
  if (bytes.size() > static_cast<size_t>(kMaxPickleBytes))
    refuse_pickle(fmt::format("it has more than {} bytes", kMaxPickleBytes));
  PickleReader reader(bytes, allow);
  try {
    return reader.read();
  } catch (const std::runtime_error& fault) {
    throw std::runtime_error(fmt::format("offset {}: {}", reader.place(), fault.what()));
  }
}

}  // namespace lockstep::checkpoint
