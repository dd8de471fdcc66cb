#include "checkpoint/format/object_graph.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/proto/object_graph.pb.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kSuffix = "/.ATTRIBUTES/VARIABLE_VALUE";

}  // namespace

bool is_outside_graph(std::string_view key) { return key.starts_with(kOutsideGraph); }

std::string index_name(std::string_view key) {
  if (is_outside_graph(key)) return std::string(key);
  std::string name;
  // TensorFlow escapes "." as ".." and "/" as ".S". A key's slash separates objects and is not
  // escaped.
  for (const char letter : key) name.append(letter == '.' ? 2 : 1, letter);
  return name.append(kSuffix);
}

std::string sparse_values_name(std::string_view key) {
  return fmt::format("_lockstep/sparse/{}/values", key);
}

std::string sparse_form_name(std::string_view key) {
  return fmt::format("_lockstep/sparse/{}/form", key);
}

std::optional<std::string> state_key(std::string_view name) {
  if (is_outside_graph(name)) return std::string(name);
  if (!name.ends_with(kSuffix)) return std::nullopt;
  name.remove_suffix(kSuffix.size());
  std::string key;
  for (size_t i = 0; i < name.size(); ++i) {
    key.push_back(name[i]);
    if (name[i] != '.') continue;
    if (++i == name.size() || name[i] != '.')
      return std::nullopt;  // ".S" is an escaped slash, which no state key has
  }
  return key;
}

// object_graph(): builds the graph of nested objects that tf.train.Checkpoint walks from the root
// to a variable.

namespace {

/// One object of the graph; children in name order.
struct Node {
  std::map<std::string, Node> children;
  std::string key;  // of the variable; empty if the object is not one
};

/// Adds a key as nested objects; each part of the key is a child.
void insert(Node* root, const std::string& key) {
  Node* node = root;
  for (size_t start = 0; start <= key.size();) {
    const size_t end = std::min(key.find('/', start), key.size());
    check(end > start, "state key '" + key + "' has an empty part");
    node = &node->children[key.substr(start, end - start)];
    start = end + 1;
  }
  check(node->key.empty(), "state key '" + key + "' appears twice");
  node->key = key;
}

/// Adds the variable of a key with its index name, as TensorFlow writes it.
void add_value(const std::string& key, pb::TrackableObjectGraph::Object* object) {
  auto* value = object->add_attributes();
  value->set_name("VARIABLE_VALUE");
  value->set_full_name(key);
  value->set_checkpoint_key(index_name(key));
}

/// Writes a node and its subtree. A child gets the next free number when it is first reached.
void emit(const Node& node, int number, pb::TrackableObjectGraph* graph) {
  graph->mutable_nodes(number)->mutable_has_checkpoint_values()->set_value(true);
  if (!node.key.empty()) add_value(node.key, graph->mutable_nodes(number));
  for (const auto& [name, child] : node.children) {
    // The number of a child is its position in graph->nodes, so add the node before recursing.
    const int child_number = graph->nodes_size();
    graph->add_nodes();
    auto* reference = graph->mutable_nodes(number)->add_children();
    reference->set_node_id(child_number);
    reference->set_local_name(name);
    emit(child, child_number, graph);
  }
}

}  // namespace

std::string object_graph(const std::vector<std::string>& keys) {
  Node root;
  for (const std::string& key : keys)
    if (!is_outside_graph(key)) insert(&root, key);
  // save_counter is a variable of tf.train.Checkpoint itself.
  insert(&root, std::string(kCounterKey));
  pb::TrackableObjectGraph graph;
  graph.add_nodes();
  emit(root, 0, &graph);
  return graph.SerializeAsString();
}

// SavedGraph: node ids come from a file, so each is checked before use. Paths end, since each step
// consumes a part; cycles do no harm.

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
