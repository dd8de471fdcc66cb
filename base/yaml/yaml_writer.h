#pragma once

#include <string>

#include <yaml-cpp/node/node.h>

namespace lockstep {

/// Returns a tree as YAML in block style, written by yaml-cpp, that parses to the same tree.
/// Scalars that were plain in a document stay plain. All others are texts, which yaml-cpp alone
/// would not distinguish: several lines become `|`, the rest double-quoted text. A scalar made by a
/// program is a text; use YAML::Load("4") for a number.
std::string yaml_text(const YAML::Node& node);

}  // namespace lockstep
