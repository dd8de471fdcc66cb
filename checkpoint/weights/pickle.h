#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

/// Values of a Python pickle, read without running anything: what would call code is only noted by
/// its name, and refused by the reader of the values (checkpoint/weights/torch_pickle.h).
namespace lockstep::checkpoint {

struct PickleValue {
  enum class Kind {
    kNone,
    kBool,        ///< number
    kInt,         ///< number; of more than 8 bytes: kOther
    kText,        ///< text, bytes too
    kList,        ///< items
    kTuple,       ///< items
    kDict,        ///< items: key, value, key, value, ...
    kGlobal,      ///< module is text, name is name: a class or function
    kCall,        ///< items: what is called, the tuple of its arguments
    kPersistent,  ///< items: the tuple that names something outside of the pickle
    kOther,       ///< a number or object that nobody here needs
  };
  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string_view text, name;  ///< parts of the pickle's bytes
  std::vector<uint32_t> items;  ///< places in Pickle::values
};

struct Pickle {
  std::vector<PickleValue> values;
  uint32_t root = 0;
};

/// Whether a class or function may stand in a pickle.
using AllowGlobal = bool (*)(std::string_view module, std::string_view name);

/// The longest that is read; a hundred thousand tensors fit.
inline constexpr int64_t kMaxPickleBytes = int64_t{16} << 20;

/// Reads the opcodes of protocol 2 to 5 that dicts, lists, sets, texts, numbers and calls of
/// functions need. A global that `allow` refuses ends the reading before anything else is looked
/// at. An OrderedDict or defaultdict is a dict, a set a list. The state that BUILD sets is left
/// out. Time and memory are bounded: kMaxPickleBytes, two million values, a million of them kept or
/// waiting at a time, ten thousand marks. Throws std::runtime_error with the reason and the offset.
///
/// Source: Python's Lib/pickletools.py.
Pickle read_pickle(std::string_view bytes, AllowGlobal allow);

}  // namespace lockstep::checkpoint
