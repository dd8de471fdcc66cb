// Every rank sorts the same callbacks by name first, so all ranks get the same order without
// communication.
#include "coord/callback_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/nearest_word.h"

namespace lockstep::coord {
namespace {

/// Throws Error(kConfig); the graph is checked before the run.
[[noreturn]] void refuse(const std::string& message) {
  throw Error(ExitCode::kConfig, "callbacks", message);
}

std::vector<CallbackKey> keys_of(const std::vector<std::string>& declared) {
  std::vector<CallbackKey> keys;
  for (const std::string& text : declared) keys.push_back(callback_key(text));
  return keys;
}

/// True if the node reads the key, optional or not.
bool reads(const CallbackNode& node, const std::string& key) {
  return std::any_of(node.incoming.begin(), node.incoming.end(),
                     [&](const CallbackKey& incoming) { return incoming.name == key; });
}

/// Nodes by name, with the producer of each key.
class Graph {
 public:
  Graph(std::vector<CallbackNode> nodes, const std::vector<std::string>& source_keys)
      : nodes_(std::move(nodes)) {
    // Makers first: producers refer to them in any order.
    for (const CallbackKey& key : keys_of(source_keys)) makers_[key.name] = kSource;
    for (size_t i = 0; i < nodes_.size(); ++i) add_makers(i);
    for (size_t i = 0; i < nodes_.size(); ++i) add_producers(i);
  }

  std::vector<CallbackNode> sorted() {
    std::vector<size_t> order;
    std::vector<size_t> place(nodes_.size(), kUnplaced);
    while (order.size() < nodes_.size()) {
      const size_t next = first_ready(place);
      if (next == kUnplaced) refuse_cycle(place);
      place[next] = order.size();
      order.push_back(next);
    }
    std::vector<CallbackNode> sorted;
    for (const size_t i : order) {
      for (size_t& producer : nodes_[i].producers) producer = place[producer];
      sorted.push_back(std::move(nodes_[i]));
    }
    return sorted;
  }

 private:
  // Place of keys that the iteration itself provides; no node has it.
  static constexpr size_t kSource = SIZE_MAX;
  static constexpr size_t kUnplaced = SIZE_MAX;

  void add_makers(size_t i) {
    for (const CallbackKey& key : nodes_[i].generated) {
      const auto [other, is_new] = makers_.emplace(key.name, i);
      if (is_new) continue;
      const std::string first = other->second == kSource
                                    ? "the iteration itself"
                                    : fmt::format("callback '{}'", nodes_[other->second].name);
      refuse(fmt::format("key '{}' is made twice: by {} and by callback '{}'; rename one of them",
                         key.name, first, nodes_[i].name));
    }
  }

  void add_producers(size_t i) {
    // Optional keys without a maker are simply missing.
    CallbackNode& node = nodes_[i];
    for (const CallbackKey& key : node.incoming) {
      const auto maker = makers_.find(key.name);
      if (maker == makers_.end() && !key.is_optional) refuse_unknown(i, key.name);
      if (maker == makers_.end() || maker->second == kSource) continue;
      // Rank 0's value does not exist on the other ranks.
      if (node.run_on == RunOn::kAll && nodes_[maker->second].run_on == RunOn::kRank0)
        refuse(
            fmt::format("callback '{}' runs on all ranks and reads '{}', which '{}' makes on rank "
                        "0 alone ('{}' -> '{}'); let both run on the same ranks",
                        node.name, key.name, nodes_[maker->second].name, nodes_[maker->second].name,
                        node.name));
      if (std::find(node.producers.begin(), node.producers.end(), maker->second) ==
          node.producers.end())
        node.producers.push_back(maker->second);
    }
  }

  [[noreturn]] void refuse_unknown(size_t i, const std::string& key) const {
    std::vector<std::string> known;
    for (const auto& [name, maker] : makers_) known.push_back(name);
    refuse(fmt::format(
        "callback '{}' reads '{}', which nobody makes{}; the chain is '{}' -> {}; there "
        "are: {}",
        nodes_[i].name, key, did_you_mean(key, known), key, chain_from(i), fmt::join(known, ", ")));
  }

  /// Returns a callback and a chain of callbacks that wait for it, one reader each: 'a' -> 'b'.
  std::string chain_from(size_t i) const {
    std::vector<size_t> chain;
    for (size_t next = i; next != kUnplaced && std::count(chain.begin(), chain.end(), next) == 0;
         next = reader_of(chain.back()))
      chain.push_back(next);
    return text_of(chain);
  }

  /// Returns one node that reads a key of node i.
  size_t reader_of(size_t i) const {
    for (size_t other = 0; other < nodes_.size(); ++other)
      for (const CallbackKey& key : nodes_[i].generated)
        if (reads(nodes_[other], key.name)) return other;
    return kUnplaced;
  }

  std::string text_of(const std::vector<size_t>& chain) const {
    std::vector<std::string> names;
    for (const size_t i : chain) names.push_back("'" + nodes_[i].name + "'");
    return fmt::format("{}", fmt::join(names, " -> "));
  }

  /// Returns the first node, by name, whose producers are all placed.
  size_t first_ready(const std::vector<size_t>& place) const {
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (place[i] == kUnplaced && unplaced_producer(i, place) == kUnplaced) return i;
    return kUnplaced;
  }

  size_t unplaced_producer(size_t i, const std::vector<size_t>& place) const {
    for (const size_t producer : nodes_[i].producers)
      if (place[producer] == kUnplaced) return producer;
    return kUnplaced;
  }

  /// Reports a cycle. No node is ready, so each unplaced node has an unplaced producer. Following
  /// producers therefore returns to a node.
  [[noreturn]] void refuse_cycle(const std::vector<size_t>& place) const {
    std::vector<size_t> path;
    size_t at = 0;
    while (place[at] != kUnplaced) ++at;
    for (; std::count(path.begin(), path.end(), at) == 0; at = unplaced_producer(at, place))
      path.push_back(at);
    path.erase(path.begin(), std::find(path.begin(), path.end(), at));
    std::reverse(path.begin(), path.end());
    // Starts the cycle at its first name, so that all ranks report the same text.
    std::rotate(path.begin(), std::min_element(path.begin(), path.end()), path.end());
    path.push_back(path.front());
    refuse("callbacks wait for each other: " + text_of(path) +
           "; one of them must do without a key of the one before");
  }

  std::vector<CallbackNode> nodes_;
  std::map<std::string, size_t> makers_;  // producer of each key
};

}  // namespace

CallbackKey callback_key(const std::string& declared) {
  if (declared.starts_with('_')) return {declared.substr(1), true};
  return {declared, false};
}

std::vector<CallbackNode> sorted_callbacks(std::vector<NamedCallback> callbacks,
                                           const std::vector<std::string>& source_keys) {
  std::vector<CallbackNode> nodes;
  for (NamedCallback& named : callbacks) {
    CallbackNode node;
    node.name = std::move(named.name);
    node.run_on = named.callback->run_on();
    node.incoming = keys_of(named.callback->incoming_keys());
    node.generated = keys_of(named.callback->generated_keys());
    node.callback = std::move(named.callback);
    nodes.push_back(std::move(node));
  }
  const auto by_name = [](const CallbackNode& a, const CallbackNode& b) { return a.name < b.name; };
  std::sort(nodes.begin(), nodes.end(), by_name);
  // Sorted by name, so equal names are adjacent.
  for (size_t i = 1; i < nodes.size(); ++i)
    if (nodes[i].name == nodes[i - 1].name)
      refuse(fmt::format("two callbacks are called '{}'; give one of them another name",
                         nodes[i].name));
  return Graph(std::move(nodes), source_keys).sorted();
}

}  // namespace lockstep::coord
