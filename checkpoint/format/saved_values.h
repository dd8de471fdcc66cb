#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/object_graph.h"

/// Values of a checkpoint from any writer, in dense form.
namespace lockstep::checkpoint {

// Tensors stored as the values that a mask keeps (docs/design/checkpoint_format.md, Sparse
// tensors). The tensor of state key K has no entry under its name. It has
// _lockstep/sparse/K/values, the kept values in order in one dimension, and
// _lockstep/sparse/K/form, a text.

/// Returns K of _lockstep/sparse/K/form; nullopt for other names.
std::optional<std::string> key_of_sparse_form(std::string_view name);

struct SparseForm {
  std::vector<int64_t> shape;  ///< of the dense tensor
  std::string mask_name;       ///< index name of the tensor of mask bits

  int64_t num_elements() const;
};

/// Returns, for instance, "[64, 128] _lockstep/masks/fc/weight".
std::string text_of(const SparseForm& form);
/// Parses a form; nullopt unless text_of() gives exactly this text and the number of elements fits
/// 60 bits.
std::optional<SparseForm> parse_sparse_form(std::string_view text);

/// Writes the elements of `range` of the dense tensor: kept ones from `packed`, zeros elsewhere.
/// packed[0] is the first kept element of the range. `items` is the address of element 0 of the
/// tensor. Widths are as in base/simd/bit_mask.h.
void unpack_range(const char* packed, const uint8_t* bits, const ElementRange& range,
                  int item_bytes, char* items);

/// Description of one tensor, independent of how it is stored.
struct DenseTensor {
  int32_t dtype = 0;           ///< type number as in tensor_type.h
  std::vector<int64_t> shape;  ///< of the dense tensor
  /// Entry of the tensor, or of its kept values if it is sparse.
  const BundleEntry* entry = nullptr;
  std::string mask_name;  ///< in the index; empty unless it is sparse
  int64_t dense_bytes = 0;
  /// Size in the shards, without the mask, which is a tensor itself.
  int64_t stored_bytes = 0;

  bool is_sparse() const { return !mask_name.empty(); }
};

/// Tensors of a checkpoint under their own names. For a sparse tensor the checkpoint stores only
/// the values that a mask keeps (docs/design/checkpoint_format.md, Sparse tensors). This view lists
/// the dense tensor and hides its parts. The reader must outlive the view. One thread at a time.
class DenseView {
 public:
  /// Throws Error(kBadData) if parts of a sparse tensor are missing or inconsistent.
  explicit DenseView(BundleReader* reader);

  /// Returns the names as in an index, sorted.
  const std::vector<std::string>& names() const { return names_; }
  /// Returns a tensor's description; nullopt if there is none. It is built on each call, because an
  /// index may have very many tensors.
  std::optional<DenseTensor> find(const std::string& name) const;
  bool contains(const std::string& name) const { return find(name).has_value(); }
  bool is_text(const std::string& name) const;
  /// True if the tensor is stored as the values that a mask keeps.
  bool is_sparse(const std::string& name) const { return sparse_.contains(name); }

  /// Returns a new CPU tensor; pruned elements are +0. Not for texts. Throws as BundleReader::read,
  /// and Error(kBadData) if the mask keeps another number of elements than the values have.
  at::Tensor read(const std::string& name);
  /// Reads like BundleReader::read_all.
  void read_all(const std::vector<TensorRead>& reads);
  /// Returns the strings in row-major order.
  std::vector<std::string> read_texts(const std::string& name);
  /// Checks the mask of a sparse tensor as read() does, without memory for the dense tensor. The
  /// crc of the parts is not checked.
  void check_mask(const std::string& name) { (void)mask_of(name); }

 private:
  void add_sparse(const std::string& key, const std::string& form_name);
  SparseForm form_at(const std::string& form_name);
  at::Tensor mask_of(const std::string& name);
  void read_sparse(const TensorRead& read);

  BundleReader& reader_;
  std::vector<std::string> names_;
  std::map<std::string, DenseTensor> sparse_;
  std::set<std::string> parts_;              ///< names that are parts of sparse tensors
  std::map<std::string, at::Tensor> masks_;  ///< masks read so far; weight and moments share one
};

/// Type and shape of a value.
struct ValueForm {
  int32_t dtype = 0;  ///< number as in tensor_type.h
  std::vector<int64_t> shape;
  std::string unread = {};  ///< type of a value that cannot be read; dtype is 0

  std::string text() const;  ///< "float32 [64, 128]"
  friend bool operator==(const ValueForm&, const ValueForm&) = default;
};
ValueForm form_of(const StateEntry& entry);

/// Variable with the index name of its value.
struct NamedEntry {
  std::string name;
  StateEntry entry;
};

/// Values of a checkpoint, dense and under state keys, from any writer. All files are opened at
/// once, so they stay readable if the checkpoint is removed. Errors as BundleReader's. One thread
/// at a time.
class SavedValues {
 public:
  /// Opens a checkpoint; invalid names are refused as by require_save().
  explicit SavedValues(const std::string& prefix);

  const std::string& prefix() const { return reader_.prefix(); }
  /// Returns the index name of a key's value; nullopt if the checkpoint lacks it. The object graph
  /// decides, otherwise the rule of index_name(). A name-based checkpoint (of tf.train.Saver) has
  /// no graph. There it is the key itself, or the key without its first part: model/fc1/weight or
  /// fc1/weight.
  std::optional<std::string> find(const std::string& key) const;
  /// Returns type and shape of the value with this name.
  ValueForm form(const std::string& name) const;
  /// Returns a new CPU tensor.
  at::Tensor read(const std::string& name) { return view_.read(name); }
  /// Reads into the entries' live memory, each by the index name of its value; the forms must be
  /// equal. An error leaves each variable entirely old or entirely new.
  void read_all(const std::vector<NamedEntry>& entries);

  /// Returns the names of all values that belong to objects: neither the counter nor entries
  /// outside the graph.
  std::vector<std::string> variables() const;
  /// True if a run of Lockstep wrote it. It then has more than objects.
  bool is_of_a_run() const;
  /// Returns the number that the checkpoint stores about itself.
  std::optional<int64_t> save_counter();

 private:
  BundleReader reader_;
  DenseView view_;
  std::optional<SavedGraph> graph_;  // nullopt: an older, name-based checkpoint
};

/// Returns an index name as shown to users: the state key if it is one.
std::string shown_name(const std::string& name);

}  // namespace lockstep::checkpoint
