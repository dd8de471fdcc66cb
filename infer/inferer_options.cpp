#include "infer/inferer_options.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

// Readers of section `inferer` and of its feeds.
namespace lockstep::infer {
namespace {

InfererOptions read_inferer_options(ConfigReader* in) {
  InfererOptions options;
  in->read_choice("engine", &options.engine.engine, {"optimized", "plain", "sparse"},
                  "optimized: LibTorch's freeze and inference passes, or TensorRT; plain: the "
                  "network as written, same bits as an evaluation; sparse: only kept weights where "
                  "that is faster, of checkpoints and ONNX files");
  options.engine.tensorrt = read_tensorrt_config(in->section("tensorrt_config"));
  ConfigReader run = in->section("run_config");
  run.read("use_multiprocessing", &options.use_multiprocessing,
           "read, compute and run callbacks in one thread each; false: sequentially");
  run.read("queue_size", &options.queue_size, count_from(1),
           "most iterations queued between two of these threads");
  run.done();
  if (options.engine.engine == "plain" && options.engine.tensorrt.use_tensorrt)
    in->fault("engine",
              "'engine: plain' leaves the network unchanged, 'tensorrt_config.use_tensorrt: true' "
              "compiles it: remove one");
  return options;
}

// A feed in YAML: a word (train, eval or a path), a map with `type`, or a list of these.
FeedSection read_feed(const YAML::Node& node, const std::string& path, const YamlDocument& document,
                      Diagnostics* faults) {
  if (node.IsScalar() && !node.Scalar().empty())
    return {.named = node.Scalar(), .dataset = std::nullopt};
  // Without a type the data-set reader would report a less helpful fault.
  if (node.IsMap() && !node["type"].IsDefined()) {
    faults->add(
        document.fault_at(node, fmt::format("'{}' names no data: give its type, as in {{type: "
                                            "digits}} or {{type: npy, path: x.npy}}",
                                            path)));
    return {};
  }
  if (node.IsMap()) {
    const ConfigReader in(node, path, document, faults);
    return {.named = "", .dataset = data::read_dataset_options(in, data::DatasetUse::kInference)};
  }
  faults->add(document.fault_at(
      node,
      fmt::format("'{}' must be a data set's section ({{type: ...}}), train, eval, a path, or a "
                  "list of these",
                  path)));
  return {};
}

}  // namespace

std::vector<FeedSection> read_feeds(const YAML::Node& node, const std::string& path,
                                    const YamlDocument& document, Diagnostics* faults) {
  if (!node.IsSequence()) return {read_feed(node, path, document, faults)};
  std::vector<FeedSection> feeds;
  for (size_t i = 0; i < node.size(); ++i)
    feeds.push_back(read_feed(node[i], fmt::format("{}[{}]", path, i), document, faults));
  return feeds;
}

InfererSection read_inferer_section(ConfigReader* in) {
  InfererSection section;
  section.options = read_inferer_options(in);
  in->read("batch_size", &section.batch_size, count_from(1), "samples per iteration and feed");
  in->read("log_dir", &section.log_dir, "output folder of callbacks; default <project_dir>/infer");
  const YAML::Node feed = in->take(
      "feed", "map, string or list",
      "inputs: a section as data.eval, a path, train or eval; a list: all of them joined per "
      "iteration; default eval");
  const std::string path = in->path().empty() ? "feed" : in->path() + ".feed";
  if (feed) section.feeds = read_feeds(feed, path, in->document(), in->faults());
  section.callbacks = coord::read_callbacks(in->section("callbacks"), coord::Mode::kInfer);
  return section;
}

}  // namespace lockstep::infer
