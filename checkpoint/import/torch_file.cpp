// State dicts of PyTorch: the calls in the pickle, and the archive.
#include "checkpoint/import/torch_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/format/tensor_type.h"
#include "checkpoint/import/load_weights.h"

namespace lockstep::checkpoint {

// tensors_of_pickle(): interprets the recorded calls of a state dict's pickle. Only calls of
// torch._utils._rebuild_* become tensors; all sizes are checked against the storage.

namespace {

using Kind = PickleValue::Kind;

constexpr int kMaxDictDepth = 8;  // of nested dicts
// A dict may contain another one many times, so visits are limited, not only values.
constexpr int64_t kMaxVisits = 200'000;
constexpr size_t kMaxNameBytes = 1000, kMaxTensorDims = 32;
constexpr size_t kMaxBytesOfNames = size_t{16} << 20;

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 12> kStorages = {
    {{"FloatStorage", at::kFloat},
     {"HalfStorage", at::kHalf},
     {"BFloat16Storage", at::kBFloat16},
     {"DoubleStorage", at::kDouble},
     {"LongStorage", at::kLong},
     {"IntStorage", at::kInt},
     {"ShortStorage", at::kShort},
     {"CharStorage", at::kChar},
     {"ByteStorage", at::kByte},
     {"BoolStorage", at::kBool},
     {"ComplexFloatStorage", at::kComplexFloat},
     {"ComplexDoubleStorage", at::kComplexDouble}}};

/// Names of torch that often occur next to tensors. Each makes a plain value and runs no code of
/// the file.
constexpr std::array<std::string_view, 32> kPlainOfTorch = {"Size",
                                                            "device",
                                                            "dtype",
                                                            "float",
                                                            "float16",
                                                            "float32",
                                                            "float64",
                                                            "double",
                                                            "half",
                                                            "bfloat16",
                                                            "uint8",
                                                            "uint16",
                                                            "uint32",
                                                            "uint64",
                                                            "int8",
                                                            "int16",
                                                            "int32",
                                                            "int64",
                                                            "int",
                                                            "long",
                                                            "bool",
                                                            "complex64",
                                                            "complex128",
                                                            "float8_e4m3fn",
                                                            "float8_e5m2",
                                                            "float8_e4m3fnuz",
                                                            "float8_e5m2fnuz",
                                                            "qint8",
                                                            "quint8",
                                                            "qint32",
                                                            "per_tensor_affine",
                                                            "per_channel_affine"};
constexpr std::array<std::string_view, 9> kPlainOfPython = {
    "set", "frozenset", "list", "dict", "int", "float", "bool", "complex", "bytearray"};
constexpr std::array<std::string_view, 3> kPlainCollections = {"OrderedDict", "defaultdict",
                                                               "Counter"};
// Functions that make dense tensors; other _rebuild_ functions make kinds that are not read.
constexpr std::array<std::string_view, 2> kRebuilders = {"_rebuild_tensor_v2",
                                                         "_rebuild_parameter"};
constexpr std::string_view kTensorMaker = "torch._utils", kRebuild = "_rebuild_",
                           kStorage = "Storage";

bool has(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::optional<at::ScalarType> type_of_storage(std::string_view name) {
  for (const auto& [known, type] : kStorages)
    if (known == name) return type;
  return std::nullopt;
}

bool may_stand_in_state_dict(std::string_view module, std::string_view name) {
  if (module == kTensorMaker) return name.starts_with(kRebuild);
  if (module == "torch") return name.ends_with(kStorage) || has(kPlainOfTorch, name);
  if (module == "torch.storage") return name.ends_with(kStorage);
  if (module == "torch.serialization") return name == "_get_layout";  // of sparse tensors
  if (module == "collections") return has(kPlainCollections, name);
  if (module == "builtins" || module == "__builtin__") return has(kPlainOfPython, name);
  return module == "_codecs" && name == "encode";  // how protocol 2 writes bytes
}

[[noreturn]] void refuse_tensor(const std::string& name, std::string_view why) {
  throw std::runtime_error(fmt::format("tensor '{}': {}", name, why));
}

Pickle read_state_dict(std::string_view bytes) {
  try {
    return read_pickle(bytes, may_stand_in_state_dict);
  } catch (const std::runtime_error& fault) {
    throw std::runtime_error(
        fmt::format("{}. A pickle may call any code, so only dicts, tensors and plain values are "
                    "supported: save only the weights, torch.save(model.state_dict(), ...)",
                    fault.what()));
  }
}

class StateDict {
 public:
  explicit StateDict(std::string_view bytes) : pickle_(read_state_dict(bytes)) {}

  std::map<std::string, TensorInStorage> tensors() {
    add_below(pickle_.root, "", 0);
    return std::move(tensors_);
  }

 private:
  const PickleValue& at(uint32_t place) const { return pickle_.values[place]; }

  void count_visit() {
    if (++num_visits_ > kMaxVisits)
      throw std::runtime_error(fmt::format(
          "its dicts contain more than {} values, or are nested in each other too often",
          kMaxVisits));
  }

  void add_below(uint32_t place, const std::string& name, int depth) {
    count_visit();
    const PickleValue& value = at(place);
    if (value.kind == Kind::kCall && at(value.items[0]).text == kTensorMaker) add(value, name);
    if (value.kind != Kind::kDict) return;
    if (depth >= kMaxDictDepth) throw std::runtime_error("its dicts are nested too deeply");
    for (size_t i = 0; i + 1 < value.items.size(); i += 2)
      if (const auto key = text_of(at(value.items[i])))
        add_below(value.items[i + 1], name.empty() ? *key : name + "." + *key, depth + 1);
  }

  std::optional<std::string> text_of(const PickleValue& key) const {
    if (key.kind == Kind::kInt) return std::to_string(key.number);
    if (key.kind != Kind::kText || key.text.empty()) return std::nullopt;
    return std::string(key.text);
  }

  void add(const PickleValue& call, const std::string& name) {
    if (name.size() > kMaxNameBytes)
      refuse_tensor(name.substr(0, 40) + "...",
                    fmt::format("its name has more than {} bytes", kMaxNameBytes));
    bytes_of_names_ += name.size();
    if (bytes_of_names_ > kMaxBytesOfNames)
      throw std::runtime_error(
          fmt::format("the names of its tensors have more than {} bytes", kMaxBytesOfNames));
    if (!tensors_.emplace(name, tensor_of(call, name)).second)
      refuse_tensor(name, "two tensors have this name: save them under different names");
  }

  TensorInStorage tensor_of(const PickleValue& call, const std::string& name) {
    const PickleValue& function = at(call.items[0]);
    const std::vector<uint32_t>& arguments = at(call.items[1]).items;
    // A parameter wraps a tensor's call. A parameter in a parameter is refused, as it could recurse
    // without end.
    if (function.name == "_rebuild_parameter") {
      if (arguments.empty() || at(arguments[0]).kind != Kind::kCall ||
          at(at(arguments[0]).items[0]).name == function.name)
        refuse_tensor(name, "a parameter is not created from a tensor");
      return tensor_of(at(arguments[0]), name);
    }
    if (function.text == kTensorMaker && !has(kRebuilders, function.name))
      return unread(function.name);
    if (function.text != kTensorMaker || arguments.size() < 4)
      refuse_tensor(name, "the function that should create it does not return a tensor");
    // Argument 6 is the tensor's metadata with its neg and conj bits.
    if (arguments.size() > 6) require_plain(at(arguments[6]), name);
    TensorInStorage tensor = storage_of(at(arguments[0]), name);
    if (!tensor.unread.empty()) return tensor;
    tensor.offset = count_of(at(arguments[1]), name);
    tensor.shape = counts_of(at(arguments[2]), name);
    tensor.strides = counts_of(at(arguments[3]), name);
    require_inside(tensor, name);
    return tensor;
  }

  /// Checks the tensor's bits by name: with {"neg": True} the stored values still have to be
  /// negated.
  void require_plain(const PickleValue& bits, const std::string& name) {
    if (bits.kind != Kind::kDict) return;
    for (size_t i = 0; i + 1 < bits.items.size(); i += 2) {
      count_visit();
      const std::string_view bit = at(bits.items[i]).text;
      if ((bit == "neg" || bit == "conj") && at(bits.items[i + 1]).number != 0)
        refuse_tensor(name, fmt::format("its {0} bit is set, so the stored values differ from its "
                                        "values: save tensor.resolve_{0}()",
                                        bit));
    }
  }

  /// Reads the persistent id ("storage", class of the storage, key, device, number of elements).
  TensorInStorage storage_of(const PickleValue& value, const std::string& name) const {
    const std::vector<uint32_t> none;
    const std::vector<uint32_t>& id =
        value.kind == Kind::kPersistent ? at(value.items[0]).items : none;
    if (id.size() < 5 || at(id[0]).text != "storage" || at(id[1]).kind != Kind::kGlobal ||
        at(id[2]).kind != Kind::kText)
      refuse_tensor(name, "it names no storage");
    const auto type = type_of_storage(at(id[1]).name);
    if (!type) return unread(at(id[1]).name);
    return {.storage = std::string(at(id[2]).text),
            .type = *type,
            .storage_elements = count_of(at(id[4]), name),
            .shape = {},
            .strides = {}};
  }

  static TensorInStorage unread(std::string_view what) {
    return {.storage = {}, .shape = {}, .strides = {}, .unread = std::string(what)};
  }

  static int64_t count_of(const PickleValue& value, const std::string& name) {
    // Up to 2^48, so that products of a few counts are checked before they can overflow.
    if (value.kind != Kind::kInt || value.number < 0 || value.number > int64_t{1} << 48)
      refuse_tensor(name, "one of its numbers is missing or out of range");
    return value.number;
  }
  std::vector<int64_t> counts_of(const PickleValue& tuple, const std::string& name) const {
    if (tuple.kind != Kind::kTuple || tuple.items.size() > kMaxTensorDims)
      refuse_tensor(name,
                    fmt::format("its shape or strides are missing, or have more than {} dimensions",
                                kMaxTensorDims));
    std::vector<int64_t> counts;
    for (const uint32_t place : tuple.items) counts.push_back(count_of(at(place), name));
    return counts;
  }

  static void require_inside(const TensorInStorage& tensor, const std::string& name) {
    if (tensor.shape.size() != tensor.strides.size())
      refuse_tensor(name, "it does not have one stride per dimension");
    // An empty tensor reads no element, so any offset is fine.
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) return;
    int64_t num_elements = 1, last = tensor.offset;
    for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
      int64_t step = 0;
      if (__builtin_mul_overflow(num_elements, tensor.shape[dim], &num_elements) ||
          __builtin_mul_overflow(tensor.shape[dim] - 1, tensor.strides[dim], &step) ||
          __builtin_add_overflow(last, step, &last))
        refuse_tensor(name, "its shape is invalid");
    }
    if (last >= tensor.storage_elements || num_elements > tensor.storage_elements)
      refuse_tensor(name, fmt::format("it extends beyond its storage of {} elements",
                                      tensor.storage_elements));
  }

  const Pickle pickle_;
  std::map<std::string, TensorInStorage> tensors_;
  int64_t num_visits_ = 0;
  size_t bytes_of_names_ = 0;
};

}  // namespace

std::map<std::string, TensorInStorage> tensors_of_pickle(std::string_view bytes) {
  return StateDict(bytes).tensors();
}

// open_torch_file(): a state dict is a zip archive. data.pkl describes the tensors, data/<key> are
// their storages. Tensors are views of storages.

namespace {

constexpr std::string_view kPickleName = "data.pkl";

class TorchFile final : public WeightsFile {
 public:
  explicit TorchFile(const std::string& path) : file_(path), members_(zip_members(file_)) {
    find_folder();
    if (members_.contains(folder_ + "constants.pkl"))
      refuse("it is a TorchScript archive, which contains code: save the state dict of the module");
    require_byte_order();
    try {
      tensors_ = tensors_of_pickle(member(std::string(kPickleName), kMaxPickleBytes));
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& fault) {
      refuse(fault.what());
    }
    if (tensors_.empty()) refuse("it does not contain a dict of tensors");
    // All storages must be present and long enough before any tensor is read.
    for (const auto& [name, tensor] : tensors_)
      if (tensor.unread.empty()) require_storage(name, tensor);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }

  ValueForm form(const std::string& name) const override {
    const TensorInStorage& tensor = tensors_.at(name);
    if (!tensor.unread.empty()) return {0, {}, tensor.unread};
    return {type_number(tensor.type).value_or(0), tensor.shape};
  }

  at::Tensor read(const std::string& name) override {
    const TensorInStorage& tensor = tensors_.at(name);
    if (!tensor.unread.empty()) refuse(fmt::format("'{}' is {}", name, form(name).text()));
    if (tensor.storage != last_key_) {  // tensors of one storage often follow one another
      last_bytes_ = member("data/" + tensor.storage, file_.num_bytes());
      last_key_ = tensor.storage;
    }
    return at::from_blob(last_bytes_.data(), {tensor.storage_elements}, tensor.type)
        .as_strided(tensor.shape, tensor.strides, tensor.offset)
        // clone(): last_bytes_ is replaced by the next storage.
        .clone(at::MemoryFormat::Contiguous);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ExitCode::kBadData, "weights",
                fmt::format("{} cannot be read as a state dict of PyTorch: {}",
                            file_.path().string(), why));
  }

  /// Finds the archive's only folder, which is named after the file as it was first saved.
  void find_folder() {
    for (const auto& [name, member] : members_) {
      const size_t slash = name.find('/');
      if (slash != std::string::npos && std::string_view(name).substr(slash + 1) == kPickleName)
        folder_ = name.substr(0, slash + 1);
    }
    if (folder_.empty()) refuse("the archive contains no data.pkl");
  }

  std::string member(const std::string& name, int64_t max_bytes) const {
    const auto found = members_.find(folder_ + name);
    if (found == members_.end()) refuse(fmt::format("the archive contains no '{}'", name));
    return read_member(file_, found->first, found->second, max_bytes);
  }

  void require_byte_order() const {
    if (members_.contains(folder_ + "byteorder") && member("byteorder", 16) != "little")
      refuse("its numbers are big-endian");
  }

  void require_storage(const std::string& name, const TensorInStorage& tensor) const {
    const auto found = members_.find(folder_ + "data/" + tensor.storage);
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(tensor.type));
    if (found == members_.end() ||
        found->second.num_bytes / element_bytes < tensor.storage_elements)
      refuse(fmt::format("tensor '{}': its storage '{}' is missing or truncated", name,
                         tensor.storage));
  }

  const files::Reader file_;
  const std::map<std::string, ZipMember> members_;
  std::string folder_;
  std::map<std::string, TensorInStorage> tensors_;
  std::string last_key_, last_bytes_;
};

}  // namespace

std::unique_ptr<WeightsFile> open_torch_file(const std::string& path) {
  return std::make_unique<TorchFile>(path);
}

}  // namespace lockstep::checkpoint
