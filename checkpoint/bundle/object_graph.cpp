// Builds the graph of nested objects that tf.train.Checkpoint walks from the root to a variable.
#include "checkpoint/bundle/object_graph.h"

#include <map>

#include "base/error.h"
#include "checkpoint/files/state_names.h"
#include "checkpoint/proto/object_graph.pb.h"

namespace lockstep::checkpoint {
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
  check(node->key.empty(), "state key '" + key + "' stands twice");
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
    if (!is_beside_graph(key)) insert(&root, key);
  // save_counter is a variable of tf.train.Checkpoint itself.
  insert(&root, std::string(kCounterKey));
  pb::TrackableObjectGraph graph;
  graph.add_nodes();
  emit(root, 0, &graph);
  return graph.SerializeAsString();
}

}  // namespace lockstep::checkpoint
