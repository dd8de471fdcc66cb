#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

/// The object graph of a save as it is read, ours or TensorFlow's: it says by which name a variable
/// stands in the index that is reached from the root by certain names. In TensorFlow's saves one
/// variable may be reached in several ways, and only one of them is its name.
class SavedGraph {
 public:
  /// Throws std::runtime_error with the reason if the bytes are no such graph.
  explicit SavedGraph(const std::string& bytes);

  /// The index name of the variable at this path, parts with slashes between; nothing if there is
  /// none.
  std::optional<std::string> find(std::string_view path) const;
  /// Index names of all variables, sorted.
  const std::set<std::string>& variables() const { return variables_; }

 private:
  struct Node {
    std::map<std::string, size_t, std::less<>> children;
    std::string variable;  // its name in the index; empty: it is none
  };
  std::vector<Node> nodes_;
  std::set<std::string> variables_;
};

}  // namespace lockstep::checkpoint
