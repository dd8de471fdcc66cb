#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

/// Names in an index, their conversion from and to state keys, and the object graph
/// (docs/design/checkpoint_format.md, Names).
namespace lockstep::checkpoint {

inline constexpr std::string_view kGraphName = "_CHECKPOINTABLE_OBJECT_GRAPH";
inline constexpr std::string_view kCounterKey = "save_counter";
inline constexpr std::string_view kOutsideGraph = "_lockstep/";

/// True for keys under `_lockstep/`, which are outside the object graph.
bool is_outside_graph(std::string_view key);
/// Returns the index name of a key: model/conv/weight ->
/// model/conv/weight/.ATTRIBUTES/VARIABLE_VALUE; _lockstep/step -> _lockstep/step.
std::string index_name(std::string_view key);
/// Names of the two parts of a tensor whose kept elements only are stored
/// (docs/design/checkpoint_format.md, Sparse tensors).
std::string sparse_values_name(std::string_view key);
std::string sparse_form_name(std::string_view key);
/// Returns the state key of an index name; nullopt for names that no state key can have.
std::optional<std::string> state_key(std::string_view name);

/// Returns the serialized object graph of these state keys, by which tf.train.Checkpoint finds its
/// variables. The parts of a key name nested objects; the last part names a variable. Keys outside
/// the graph (is_outside_graph()) are skipped, and save_counter is added. The result does not
/// depend on the order of the keys. Throws Error(kBug) for an empty part of a key or a repeated
/// key.
std::string object_graph(const std::vector<std::string>& keys);

/// Object graph of a checkpoint, ours or TensorFlow's. It gives the index name of the variable that
/// is reached from the root by a path of names. In TensorFlow's checkpoints one variable may have
/// several paths, of which only one is its name.
class SavedGraph {
 public:
  /// Parses a graph. Throws std::runtime_error with the reason if the bytes are not a valid one.
  explicit SavedGraph(const std::string& bytes);

  /// Returns the index name of the variable at this path, parts separated by slashes; nullopt if
  /// there is none.
  std::optional<std::string> find(std::string_view path) const;
  /// Returns the index names of all variables, sorted.
  const std::set<std::string>& variables() const { return variables_; }

 private:
  struct Node {
    std::map<std::string, size_t, std::less<>> children;
    std::string variable;  // its index name; empty if the object is not a variable
  };
  std::vector<Node> nodes_;
  std::set<std::string> variables_;
};

}  // namespace lockstep::checkpoint
