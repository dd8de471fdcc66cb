#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

/// Values of a Python pickle, read without running any code. A global that would run code is only
/// recorded by its name. The reader of the values refuses it (checkpoint/weights/torch_pickle.h).
namespace lockstep::checkpoint {

struct PickleValue {
  enum class Kind {
    kNone,
    kBool,        ///< number
    kInt,         ///< number; with more than 8 bytes: kOther
    kText,        ///< text; also for bytes
    kList,        ///< items
    kTuple,       ///< items
    kDict,        ///< items: key, value, key, value, ...
    kGlobal,      ///< module is text, name is name: a class or function
    kCall,        ///< items: the callable, the tuple of its arguments
    kPersistent,  ///< items: the tuple that names something outside the pickle
    kOther,       ///< a number or object that is not needed here
  };
  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string_view text, name;  ///< parts of the pickle's bytes
  std::vector<uint32_t> items;  ///< indices into Pickle::values
};

struct Pickle {
  std::vector<PickleValue> values;
  uint32_t root = 0;
};

/// Function that decides whether a class or function is allowed in a pickle.
using AllowGlobal = bool (*)(std::string_view module, std::string_view name);

/// Size limit in bytes; enough for a hundred thousand tensors.
inline constexpr int64_t kMaxPickleBytes = int64_t{16} << 20;

/// Reads a pickle. Supported are the opcodes of protocols 2 to 5 for dicts, lists, sets, texts,
/// numbers and function calls. A global that `allow` refuses ends the reading at once. An
/// OrderedDict or defaultdict becomes a dict, a set becomes a list. The state that BUILD sets is
/// dropped.
///
/// Limits of time and memory: kMaxPickleBytes, two million values, ten thousand marks. The memo and
/// the stack have at most a million values each. Throws std::runtime_error with reason and offset.
///
/// Source: Python's Lib/pickletools.py.
Pickle read_pickle(std::string_view bytes, AllowGlobal allow);

}  // namespace lockstep::checkpoint
