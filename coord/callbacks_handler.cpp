// The handler runs the sorted callbacks one after the other. A halted callback halts all that
// depend on it, for one iteration.
#include "coord/callbacks_handler.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "metrics/tensorboard/summary.h"

namespace lockstep::coord {
namespace {

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
      throw Error(
          ExitCode::kBadData, "callbacks",
          fmt::format("key '{}' is not there; a callback that can do without it reads '_{}'",
                      key.name, key.name));
  }
  return input;
}

/// Throws Error(kBadData) if the returned keys differ from generated_keys().
void require_declared(const CallbackNode& node, const DataMap& made) {
  for (const auto& [name, value] : made.values())
    if (std::none_of(node.generated.begin(), node.generated.end(),
                     [&, &key = name](const CallbackKey& known) { return known.name == key; }))
      throw Error(
          ExitCode::kBadData, "callbacks",
          fmt::format("returned key '{}', which its generated_keys() do not declare", name));
  for (const CallbackKey& key : node.generated)
    if (!key.is_optional && !made.contains(key.name))
      throw Error(ExitCode::kBadData, "callbacks",
                  fmt::format("did not return key '{}', which its generated_keys() declare; return "
                              "it, or declare '_{}'",
                              key.name, key.name));
}

}  // namespace

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
    log::warning("callbacks",
                 "after the error that ends the run: end() threw what is no exception");
  }
}

}  // namespace lockstep::coord
