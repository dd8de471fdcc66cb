#pragma once

#include <string>

#include <yaml-cpp/node/node.h>

namespace lockstep {

/// A tree as YAML in block style, written by yaml-cpp, that reads as the same tree. Scalars that
/// were plain in a document stay plain; all others are texts, which yaml-cpp alone would not keep
/// apart: lines as `|`, else in double quotes. A scalar made by a program is a text: take
/// YAML::Load("4") for a number.
std::string yaml_text(const YAML::Node& node);

}  // namespace lockstep
