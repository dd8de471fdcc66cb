#pragma once

#include <string>

#include <yaml-cpp/node/node.h>

namespace lockstep {

/// A tree as YAML in block style, two blanks a level, that reads as the same tree. Scalars that
/// were plain in a document stay plain; others are texts: plain where nothing else can be meant,
/// lines as `|`, else in double quotes. A scalar made by a program is a text: take
/// YAML::Load("4") for a number.
std::string yaml_text(const YAML::Node& node);

}  // namespace lockstep
