#pragma once

#include <limits>
#include <map>
#include <sstream>
#include <string>

#include "metrics/training_metrics.h"

namespace lockstep::tests {

/// A page, taken apart.
struct Page {
  explicit Page(const std::string& page_text) : text(page_text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string hash, kind, name, type;
      if (line.starts_with("# TYPE ") && words >> hash >> kind >> name >> type) types[name] = type;
      if (!line.starts_with('#'))
        values[line.substr(0, line.rfind(' '))] = line.substr(line.rfind(' ') + 1);
    }
  }
  double value(const std::string& series) const {
    const auto found = values.find(series);
    return found == values.end() ? std::numeric_limits<double>::quiet_NaN()
                                 : std::stod(found->second);
  }
  bool has(const std::string& series) const { return values.contains(series); }

  std::string text;
  std::map<std::string, std::string> types;   // by family
  std::map<std::string, std::string> values;  // by series as written: name{labels}
};

inline Page page_of(const metrics::TrainingMetrics& all) { return Page(all.page()); }

}  // namespace lockstep::tests
