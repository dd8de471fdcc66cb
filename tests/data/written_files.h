#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/yaml.h>

#include "base/files/files.h"
#include "data/dataset_table.h"
#include "data/written_bytes.h"
#include "support/temporary_folder.h"

namespace lockstep::data::written {

/// A folder to write data into, and to open as a run file's section would.
class DataFolder : public lockstep::tests::TemporaryFolder {
 public:
  /// The path of a file that holds these bytes; its folders are made.
  std::string write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path file = path() / name;
    std::filesystem::create_directories(file.parent_path());
    files::Writer writer(file);
    writer.append(bytes);
    writer.close();
    return file.string();
  }

  /// `section`: as in `data.train`, flow style; `@` stands for the folder.
  std::unique_ptr<Dataset> open(std::string section, DatasetUse use = DatasetUse::kTraining,
                                const DatasetInputs& inputs = {}) const {
    for (size_t at = section.find('@'); at != std::string::npos; at = section.find('@'))
      section.replace(at, 1, path().string());
    Diagnostics faults;
    const YamlDocument document = YamlDocument::parse("section", section, &faults);
    const DatasetOptions options =
        read_dataset_options(ConfigReader(document.root(), "data.train", document, &faults), use);
    faults.throw_if_any("config");
    return options.make(inputs);
  }

  /// "65: text" of the error that opening, or reading the first sample, ends with.
  std::string fault_of(const std::string& section, int64_t sample = 0) const {
    try {
      (void)open(section)->get(std::vector<int64_t>{sample}, 0);
    } catch (const Error& fault) {
      return std::to_string(static_cast<int>(fault.code())) + ": " + fault.what();
    }
    return "no fault";
  }
};

inline std::vector<float> inputs_of(const Samples& samples) {
  const float* begin = samples.inputs_BX.const_data_ptr<float>();
  return {begin, begin + samples.inputs_BX.numel()};
}

inline std::vector<int64_t> labels_of(const Samples& samples) {
  const int64_t* begin = samples.targets_BY.const_data_ptr<int64_t>();
  return {begin, begin + samples.targets_BY.numel()};
}

}  // namespace lockstep::data::written
