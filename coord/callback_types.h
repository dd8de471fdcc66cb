#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "coord/callback.h"
#include "coord/callbacks_handler.h"

/// Section `callbacks` of the run file, its table of callbacks, and Lockstep's own rows.
namespace lockstep::coord {

using MakeCallback = std::function<std::unique_ptr<Callback>(const Services&)>;

/// Row of the table of callbacks that section `callbacks` may name:
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
  std::vector<std::string> modes = {"train", "eval", "infer"};  ///< default modes
};

/// Returns the table with Lockstep's own callbacks: log, prediction_saver, tfrecords_saver,
/// collector, statistics, summary, topk, confusion.
NamedTable<CallbackType>& callback_types();

/// Callback that a run file requests.
struct WantedCallback {
  std::string name;  ///< its key in the section
  std::vector<Mode> modes;
  MakeCallback make;
};

/// Reads the section. Each key is the name of a callback, with its type if that is another word:
///
///   callbacks:
///     log: {every: 10, keys: [loss], modes: [train]}
///     boxes: {type: tfrecords_saver, keys: [boxes]}
///
/// Faults go to the list of `in`. `only` is for a section of one mode. It is the default of each
/// callback, and a callback's own modes must contain it.
std::vector<WantedCallback> read_callbacks(ConfigReader in, std::optional<Mode> only = {});

/// Makes the callbacks of one mode. Throws Error(kConfig) if two of them write the same files or
/// show KPIs of one name. Throws it too if a KPI has the name of one of the driver's figures.
/// During the run the first value of a KPI with an unannounced name throws the same.
std::vector<NamedCallback> make_callbacks(const std::vector<WantedCallback>& wanted, Mode mode,
                                          const Services& services);

/// Rows of Lockstep's own callbacks.
CallbackType log_callback();
CallbackType prediction_saver();
CallbackType tf_records_saver();
CallbackType collector();
CallbackType statistics();
CallbackType summary();
CallbackType topk();
CallbackType confusion();

/// True in end() if a stop or an error broke off an evaluation or inference. Then `file` must not
/// be written, and a warning says so. A training is never incomplete in this sense.
bool is_incomplete_pass(const CallbackContext& context, const std::string& file);

/// Reads `keys`, the keys that the callback reads; required and not empty.
std::vector<std::string> read_keys(ConfigReader* in, const std::string& help);

/// Reads `not_batch_keys`; each must be one of `keys` (`_x` is x here).
std::vector<std::string> read_not_batch_keys(ConfigReader* in, const std::string& help,
                                             const std::vector<std::string>& keys);

}  // namespace lockstep::coord
