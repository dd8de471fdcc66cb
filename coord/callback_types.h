#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "coord/callbacks_handler.h"
#include "coord/services.h"

namespace lockstep::coord {

using MakeCallback = std::function<std::unique_ptr<Callback>(const Services&)>;

/// One row of the table of callbacks that section `callbacks` may name:
///
///   coord::callback_types().add({.name = "softmax", .read = [](ConfigReader* in) -> MakeCallback {
///     std::string key = "logits";
///     in->read("key", &key, "softmax: what it is taken of");
///     return [key](const Services&) { return std::make_unique<Softmax>(key); };
///   }});
struct CallbackType {
  std::string name;
  /// Reads the keys of the callback's own section; `type` and `modes` are read before.
  std::function<MakeCallback(ConfigReader* in)> read;
  std::vector<std::string> modes = {"train", "eval", "infer"};  ///< where it runs, if not said
};

/// The table, with Lockstep's own: log, prediction_saver, tfrecords_saver, collector, statistics,
/// summary, topk, confusion.
NamedTable<CallbackType>& callback_types();

/// A callback that a run file asks for.
struct WantedCallback {
  std::string name;  ///< its key in the section
  std::vector<Mode> modes;
  MakeCallback make;
};

/// Those of the section: each key is the name of one, with its type if that is another word:
///
///   callbacks:
///     log: {every: 10, keys: [loss], modes: [train]}
///     boxes: {type: tfrecords_saver, keys: [boxes]}
///
/// Faults go where `in` sends them. `only`: of a section of one mode, which each callback has if it
/// says none, and must have among those that it says.
std::vector<WantedCallback> read_callbacks(ConfigReader in, std::optional<Mode> only = {});

/// Those for one mode, made. Throws Error(kConfig) where two of them write the same files or show
/// KPIs of one name, or a KPI has the name of a figure of the driver; so does, in the run, the
/// first value of a KPI whose name was not known before.
std::vector<NamedCallback> make_callbacks(const std::vector<WantedCallback>& wanted, Mode mode,
                                          const Services& services);

}  // namespace lockstep::coord
