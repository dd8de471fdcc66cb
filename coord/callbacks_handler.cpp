// Order and calls of callbacks. Every rank sorts the same callbacks by name first, so all ranks get
// the same order without communication.
#include "coord/callbacks_handler.h"

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/log.h"
#include "metrics/tensorboard/summary.h"

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
      refuse(
          fmt::format("key '{}' is generated twice: by {} and by callback '{}'; rename one of them",
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
            fmt::format("callback '{}' runs on all ranks and reads '{}', which '{}' generates only "
                        "on rank 0 ('{}' -> '{}'); run both on the same ranks",
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
        "callback '{}' reads '{}', which no callback generates{}; the chain is '{}' -> {}; "
        "available: {}",
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
           "; one of them must not read a key of the previous one");
  }

  std::vector<CallbackNode> nodes_;
  std::map<std::string, size_t> makers_;  // producer of each key
};

// The handler runs the sorted callbacks one after the other. A halted callback halts all that
// depend on it, for one iteration.

/// Returns the place of an error for its message.
std::string place_text(const CallbackNode& node, const CallbackContext& context) {
  return fmt::format("callback '{}', iteration {}", node.name,
                     context.iteration_info.iteration_number);
}

/// Runs a call of a callback and adds the callback's name to any exception.
template <typename Call>
auto named_call(const CallbackNode& node, const CallbackContext& context, const Call& call) {
  std::optional<summary::DefaultWriter> alone;  // a mean over ranks would block
  if (node.run_on == RunOn::kRank0 && context.world_size > 1)
    alone.emplace(summary::of_this_rank_alone());
  try {
    return call();
  } catch (Error& error) {
    error.append(" (" + place_text(node, context) + ")");
    throw;
  } catch (const std::exception& error) {
    throw Error(ExitCode::kBug, "callbacks",
                fmt::format("{}: {}", place_text(node, context), error.what()));
  }
}

/// Returns the declared keys of the data. A missing key is an error unless it is optional.
DataMap input_of(const CallbackNode& node, const DataMap& data) {
  DataMap input;
  for (const CallbackKey& key : node.incoming) {
    if (const DataValue* const value = data.find(key.name))
      input.put(key.name, *value);
    else if (!key.is_optional)
      refuse_data(
          fmt::format("key '{}' is missing; to make it optional, read '_{}'", key.name, key.name));
  }
  return input;
}

/// Throws Error(kBadData) if the returned keys differ from generated_keys().
void require_declared(const CallbackNode& node, const DataMap& made) {
  for (const auto& [name, value] : made.values())
    if (std::none_of(node.generated.begin(), node.generated.end(),
                     [&, &key = name](const CallbackKey& known) { return known.name == key; }))
      refuse_data(
          fmt::format("returned key '{}', which its generated_keys() do not declare", name));
  for (const CallbackKey& key : node.generated)
    if (!key.is_optional && !made.contains(key.name))
      refuse_data(
          fmt::format("did not return key '{}', which its generated_keys() declare; return "
                      "it, or declare '_{}'",
                      key.name, key.name));
}

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
      refuse(fmt::format("two callbacks have the name '{}'; rename one of them", nodes[i].name));
  return Graph(std::move(nodes), source_keys).sorted();
}

CallbacksHandler::CallbacksHandler(std::vector<NamedCallback> callbacks,
                                   const std::vector<std::string>& source_keys,
                                   CallbackContext context)
    : context_(std::move(context)), nodes_(sorted_callbacks(std::move(callbacks), source_keys)) {
  for (CallbackNode& node : nodes_)
    node.callback->set_context(node.run_on == RunOn::kAll ? &own_context_ : &context_);
  update_contexts();
}

std::vector<std::string> CallbacksHandler::order() const {
  std::vector<std::string> names;
  for (const CallbackNode& node : nodes_) names.push_back(node.name);
  return names;
}

// Only these must be computed or copied from a device on this rank.
std::vector<std::string> CallbacksHandler::keys_read_here() const {
  std::set<std::string> keys;
  for (const CallbackNode& node : nodes_)
    if (runs_here(node))
      for (const CallbackKey& key : node.incoming) keys.insert(key.name);
  return {keys.begin(), keys.end()};
}

// Callbacks on all ranks get a folder per rank, so that their files do not collide.
void CallbacksHandler::update_contexts() {
  const bool is_needed = std::any_of(nodes_.begin(), nodes_.end(), [](const CallbackNode& node) {
    return node.run_on == RunOn::kAll;
  });
  if (!is_needed) return;
  own_context_ = context_;
  if (context_.world_size > 1) own_context_.log_dir /= fmt::format("rank_{:03}", context_.rank);
}

bool CallbacksHandler::runs_here(const CallbackNode& node) const {
  return node.run_on == RunOn::kAll || context_.rank == 0;
}

void CallbacksHandler::begin() {
  context_.is_broken_off = false;
  update_contexts();
  // num_begun_ counts the callbacks whose end() must be called if a later begin() throws.
  for (num_begun_ = 0; num_begun_ < nodes_.size(); ++num_begun_) {
    const CallbackNode& node = nodes_[num_begun_];
    if (runs_here(node)) named_call(node, context_, [&] { node.callback->begin(); });
  }
}

void CallbacksHandler::on_iteration_start() {
  update_contexts();
  for (const CallbackNode& node : nodes_)
    if (runs_here(node)) named_call(node, context_, [&] { node.callback->on_iteration_start(); });
}

DataMap CallbacksHandler::on_iteration_end(const DataMap& data) {
  update_contexts();
  DataMap all = data;
  for (CallbackNode& node : nodes_) {
    if (!runs_here(node)) continue;
    // A node is halted if any of its producers is; producers come first in the order.
    node.is_halted = std::any_of(node.producers.begin(), node.producers.end(),
                                 [&](size_t i) { return nodes_[i].is_halted; });
    if (node.is_halted) continue;
    const std::optional<DataMap> made = run(node, all);
    node.is_halted = !made.has_value();
    if (!made.has_value()) continue;
    for (const auto& [key, value] : made->values()) all.put(key, value);
  }
  if (epoch_ends()) end_epoch();
  return all;
}

bool CallbacksHandler::epoch_ends() const {
  const int64_t length = context_.number_iterations_per_epoch.value_or(0);
  return context_.is_training() && length > 0 &&
         (context_.iteration_info.iteration_number + 1) % length == 0;
}

void CallbacksHandler::end_epoch() {
  // Halted callbacks too: on_epoch_end() may call collectives.
  for (const CallbackNode& node : nodes_)
    if (runs_here(node)) named_call(node, context_, [&] { node.callback->on_epoch_end(); });
}

std::optional<DataMap> CallbacksHandler::run(CallbackNode& node, const DataMap& data) {
  return named_call(node, context_, [&] {
    std::optional<DataMap> made = node.callback->on_iteration_end(input_of(node, data));
    if (made.has_value()) require_declared(node, *made);
    return made;
  });
}

void CallbacksHandler::end(bool is_broken_off) {
  context_.is_broken_off = is_broken_off;
  update_contexts();
  std::exception_ptr first;
  for (size_t i = 0; i < num_begun_; ++i) {
    if (!runs_here(nodes_[i])) continue;
    try {
      named_call(nodes_[i], context_, [&] { nodes_[i].callback->end(); });
    } catch (...) {
      // The others must still store their data; the first error is thrown at the end.
      if (!first) first = std::current_exception();
    }
  }
  num_begun_ = 0;
  if (first) std::rethrow_exception(first);
}

void CallbacksHandler::end_after_fault() noexcept {
  try {
    end(/*is_broken_off=*/true);
  } catch (const std::exception& error) {
    log::warning("callbacks", fmt::format("after the error that ends the run: {}", error.what()));
  } catch (...) {
    log::warning(
        "callbacks",
        "after the error that ends the run: end() threw something that is not an exception");
  }
}

}  // namespace lockstep::coord
