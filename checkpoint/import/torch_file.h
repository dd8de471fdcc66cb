#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "base/files/files.h"

/// Parts of a PyTorch state dict: zip archive, pickle, tensors in storages.
namespace lockstep::checkpoint {

/// File inside a zip archive.
struct ZipMember {
  int64_t header_offset = 0;  ///< of its local header
  int64_t num_bytes = 0;
  uint32_t crc32 = 0;     ///< of its bytes
  bool has_crc32 = true;  ///< false: all of the archive's are 0, as torch.save() may write them
  bool is_stored = true;  ///< neither compressed nor encrypted
};

/// Returns the members of a zip archive by name. It allocates memory only for the archive's
/// directory, at most 64 MiB. Throws Error(kBadData) if the archive is cut or damaged.
///
/// Source: PKWARE's APPNOTE.TXT, 4.3 (with the 64-bit records of 4.3.14 and 4.5.3).
std::map<std::string, ZipMember> zip_members(const files::Reader& file);

/// Returns a member's bytes, checked against their checksum if the archive has any. Throws
/// Error(kBadData) if they are damaged. Throws before it allocates memory if they exceed
/// `max_bytes`, or are compressed or encrypted, which torch.save() never does. So a small file
/// cannot unfold into a large one.
std::string read_member(const files::Reader& file, const std::string& name, const ZipMember& member,
                        int64_t max_bytes);

/// Value of a Python pickle, which is read without running any code. A global that would run code
/// is only recorded by its name. tensors_of_pickle() refuses it.
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

/// Tensor of a state dict. Its values are in a storage, which is a separate file in the archive.
struct TensorInStorage {
  std::string storage;  ///< its key: the file data/<key>
  at::ScalarType type = at::kFloat;
  int64_t storage_elements = 0;
  int64_t offset = 0;            ///< in elements; the entire tensor is inside the storage
  std::vector<int64_t> shape;    ///< at most as many elements as the storage
  std::vector<int64_t> strides;  ///< in elements, never negative
  std::string unread = {};       ///< the kind of an unsupported tensor; then nothing else is set
};

/// Returns the tensors of a pickled state dict (data.pkl) by name. Names inside nested dicts are
/// joined with dots: {"model": {"fc.weight": T}} gives model.fc.weight. Other content is skipped.
///
/// No code of the pickle is run. It may only name constructors of tensors, parameters and plain
/// values, such as torch.Size, types and sets. Tensors of unsupported kinds (quantized, float8) are
/// listed as unread.
///
/// Throws std::runtime_error with the reason. Reasons include two tensors of one name and names of
/// more than 1000 bytes (16 MiB in all). Tensors whose neg or conj bit is set are refused too. The
/// values of those are not the stored ones.
///
/// Source: torch/_utils.py (_rebuild_tensor_v2, _rebuild_parameter), torch/serialization.py
/// (persistent ids).
std::map<std::string, TensorInStorage> tensors_of_pickle(std::string_view bytes);

}  // namespace lockstep::checkpoint
