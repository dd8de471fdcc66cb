#pragma once

#include <string>

#include "base/diagnostics.h"
#include "base/yaml/yaml_document.h"
#include "model/networks/model_table.h"

namespace lockstep::tests {

/// Options of a run file's section `model`: network("{type: gpt, layers: 2}").
inline model::ModelOptions network(const std::string& section) {
  Diagnostics faults;
  const YamlDocument document = YamlDocument::parse("test", section, &faults);
  const model::ModelOptions options =
      model::read_model_options(ConfigReader(document.root(), "model", document, &faults));
  faults.throw_if_any("test");
  return options;
}

}  // namespace lockstep::tests
