// Node ids come from a file, so each is checked before use. Paths end, since each step consumes a
// part; cycles do no harm.
#include "checkpoint/restore/saved_graph.h"

#include <algorithm>
#include <stdexcept>

#include "checkpoint/proto/object_graph.pb.h"

namespace lockstep::checkpoint {

SavedGraph::SavedGraph(const std::string& bytes) {
  pb::TrackableObjectGraph graph;
  if (!graph.ParseFromString(bytes)) throw std::runtime_error("the object graph cannot be parsed");
  nodes_.resize(static_cast<size_t>(graph.nodes_size()));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto& object = graph.nodes(static_cast<int>(i));
    for (const auto& child : object.children()) {
      if (child.node_id() < 0 || child.node_id() >= graph.nodes_size())
        throw std::runtime_error("the object graph names object " +
                                 std::to_string(child.node_id()) + " of " +
                                 std::to_string(graph.nodes_size()));
      nodes_[i].children[child.local_name()] = static_cast<size_t>(child.node_id());
    }
    for (const auto& attribute : object.attributes()) {
      if (attribute.name() != "VARIABLE_VALUE") continue;
      nodes_[i].variable = attribute.checkpoint_key();
      variables_.insert(attribute.checkpoint_key());
    }
  }
}

std::optional<std::string> SavedGraph::find(std::string_view path) const {
  if (nodes_.empty()) return std::nullopt;
  const Node* node = &nodes_.front();
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find('/', start), path.size());
    const auto child = node->children.find(path.substr(start, end - start));
    if (child == node->children.end()) return std::nullopt;
    node = &nodes_[child->second];
    start = end + 1;
  }
  return node->variable.empty() ? std::nullopt : std::optional(node->variable);
}

}  // namespace lockstep::checkpoint
