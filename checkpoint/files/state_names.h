#pragma once

#include <optional>
#include <string>
#include <string_view>

/// How state keys become names in an index (docs/checkpoint_format.md, Names).
namespace lockstep::checkpoint {

inline constexpr std::string_view kGraphName = "_CHECKPOINTABLE_OBJECT_GRAPH";
inline constexpr std::string_view kCounterKey = "save_counter";
inline constexpr std::string_view kBesideGraph = "_lockstep/";

/// True for keys under `_lockstep/`, which are no part of the object graph.
bool is_beside_graph(std::string_view key);
/// model/conv/weight -> model/conv/weight/.ATTRIBUTES/VARIABLE_VALUE; _lockstep/step ->
/// _lockstep/step.
std::string index_name(std::string_view key);
/// Of a tensor of which only kept elements are stored (docs/checkpoint_format.md, Sparse tensors).
std::string sparse_values_name(std::string_view key);
std::string sparse_form_name(std::string_view key);
/// The way back; nothing for names that no state key can have.
std::optional<std::string> state_key(std::string_view name);

}  // namespace lockstep::checkpoint
