// Reader of section `export`, and whether its keys come from a preset or from the user.
#include "train/evaluation/publish_options.h"

#include <yaml-cpp/yaml.h>

namespace lockstep::train {

namespace {

void read_origins(const ConfigReader& in, PublishOptions* options) {
  bool is_written = false;
  if (!in.node().IsMap()) return;
  for (const auto& pair : in.node()) {
    if (pair.second.IsNull()) continue;  // counts as absent
    const std::string origin = in.document().place_text(pair.first.Mark());
    if (origin.starts_with("preset: "))
      options->preset = origin;
    else
      is_written = true;
  }
  options->is_from_preset = !options->preset.empty() && !is_written;
}

}  // namespace

PublishOptions read_publish_options(ConfigReader in) {
  PublishOptions options;
  in.read("after_evaluation", &options.after_evaluation,
          "publish each save that was evaluated under saved_models/<step>; evaluations save first");
  in.read("at_end", &options.at_end, "publish the final weights under saved_models/<step>");
  in.read("best", &options.best,
          "saved_models/best leads to the export of the best evaluation so far, which stays; by "
          "checkpoint.keep_best, else by the loss");
  in.read("keep", &options.keep, at_least(-1),
          "newest exports that are kept; -1 keeps all, 0 is refused");
  if (options.keep == 0)
    in.fault("keep", "'export.keep' is 0, which would keep no export; -1 keeps all");
  if (options.best && !options.after_evaluation)
    in.fault("best", "'export.best' has no effect without 'export.after_evaluation: true'");
  read_origins(in, &options);
  in.done();
  return options;
}

}  // namespace lockstep::train
