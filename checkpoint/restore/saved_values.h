#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/reader/bundle_reader.h"
#include "checkpoint/reader/dense_view.h"
#include "checkpoint/restore/saved_graph.h"

namespace lockstep::checkpoint {

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
  /// True if there is a value with this index name.
  bool contains(const std::string& name) const { return view_.contains(name); }
  /// Returns the index name of a key's value; nullopt if the checkpoint lacks it. The object graph
  /// decides, otherwise the rule of state_names.h. A name-based checkpoint (of tf.train.Saver) has
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
