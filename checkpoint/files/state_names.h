#pragma once

#include <optional>
#include <string>
#include <string_view>

/// Conversion between state keys and names in an index (docs/checkpoint_format.md, Names).
namespace lockstep::checkpoint {

inline constexpr std::string_view kGraphName = "_CHECKPOINTABLE_OBJECT_GRAPH";
inline constexpr std::string_view kCounterKey = "save_counter";
inline constexpr std::string_view kBesideGraph = "_lockstep/";

/// True for keys under `_lockstep/`, which are outside the object graph.
bool is_beside_graph(std::string_view key);
/// Returns the index name of a key: model/conv/weight ->
/// model/conv/weight/.ATTRIBUTES/VARIABLE_VALUE; _lockstep/step -> _lockstep/step.
std::string index_name(std::string_view key);
/// Names of the two parts of a tensor whose kept elements only are stored
/// (docs/checkpoint_format.md, Sparse tensors).
std::string sparse_values_name(std::string_view key);
std::string sparse_form_name(std::string_view key);
/// Returns the state key of an index name; nullopt for names that no state key can have.
std::optional<std::string> state_key(std::string_view name);

}  // namespace lockstep::checkpoint
