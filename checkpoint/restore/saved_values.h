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
  std::string unread = {};  ///< what it is, of a value that cannot be read; dtype is 0

  std::string text() const;  ///< "float32 [64, 128]"
  friend bool operator==(const ValueForm&, const ValueForm&) = default;
};
ValueForm form_of(const StateEntry& entry);

/// A variable, and by which name its value stands in the index.
struct NamedEntry {
  std::string name;
  StateEntry entry;
};

/// A save as whole, dense values under state keys, whoever wrote it. Its files are opened at once,
/// so that they can still be read when the save is removed. Errors as BundleReader's. One thread at
/// a time.
class SavedValues {
 public:
  /// As require_save() for names that are none.
  explicit SavedValues(const std::string& prefix);

  const std::string& prefix() const { return reader_.prefix(); }
  /// Whether a value of this name, as it stands in the index, is there.
  bool contains(const std::string& name) const { return view_.contains(name); }
  /// By which name a key's value stands in the index: by the object graph, else by the rule of
  /// state_names.h. In a name-based save (of tf.train.Saver, without a graph) it is the key itself,
  /// or the key without the object's own part, which is the variable's name: model/fc1/weight or
  /// fc1/weight. Nothing if the save lacks it.
  std::optional<std::string> find(const std::string& key) const;
  /// Of the value with this name.
  ValueForm form(const std::string& name) const;
  /// A new CPU tensor.
  at::Tensor read(const std::string& name) { return view_.read(name); }
  /// Into the entries' live memory, each with the name of its value; the forms must be equal. An
  /// error leaves each variable wholly old or wholly new.
  void read_all(const std::vector<NamedEntry>& entries);

  /// Names of all values that belong to objects: not the counter, nor what stands beside the graph.
  std::vector<std::string> variables() const;
  /// Whether a run of Lockstep wrote it: it then holds more than objects.
  bool is_of_a_run() const;
  /// The number that the save keeps of itself.
  std::optional<int64_t> save_counter();

 private:
  BundleReader reader_;
  DenseView view_;
  std::optional<SavedGraph> graph_;  // nothing: an older, name-based save
};

/// How a name of the index is shown to people: the state key where it is one.
std::string shown_name(const std::string& name);

}  // namespace lockstep::checkpoint
