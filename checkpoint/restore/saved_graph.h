#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::checkpoint {

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
