#include "train/evaluation/publish_options.h"

namespace lockstep::train {

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
  in.done();
  return options;
}

}  // namespace lockstep::train
