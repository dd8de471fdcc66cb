#include "coord/callback_types.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/nearest_word.h"
#include "coord/builtins/builtins.h"

namespace lockstep::coord {
namespace {

constexpr Mode kModes[] = {Mode::kTrain, Mode::kEval, Mode::kInfer};
const std::vector<std::string> kModeNames = {mode_name(kModes[0]), mode_name(kModes[1]),
                                             mode_name(kModes[2])};

std::vector<Mode> read_modes(ConfigReader* in, std::vector<std::string> names) {
  in->read("modes", &names, "where the callback runs: train, eval, infer");
  std::vector<Mode> modes;
  for (const std::string& name : names) {
    const auto known = std::find(kModeNames.begin(), kModeNames.end(), name);
    if (known == kModeNames.end())
      in->fault("modes", fmt::format("'{}' is no mode{}; there are train, eval, infer", name,
                                     did_you_mean(name, kModeNames)));
    else
      modes.push_back(kModes[known - kModeNames.begin()]);
  }
  return modes;
}

/// Null, with a fault, where there is no such type.
const CallbackType* read_type(ConfigReader* in, const std::string& name, ConfigReader* section) {
  std::string type = name;
  const bool is_said = section->read("type", &type, "kind of the callback, if not its name");
  const CallbackType* const found = callback_types().find(type);
  if (found != nullptr) return found;
  const std::vector<std::string> known = callback_types().names();
  const std::string text = fmt::format("there is no callback '{}'{}; there are {}", type,
                                       did_you_mean(type, known), fmt::join(known, ", "));
  if (is_said)
    section->fault("type", text);
  else
    in->fault(name, text + "; under a name of your own, say its type");
  return nullptr;
}

std::vector<std::string> names_in(const ConfigReader& in) {
  if (in.lists_fields()) return callback_types().names();
  std::vector<std::string> names;
  if (in.node().IsMap())
    for (const auto& pair : in.node()) names.push_back(pair.first.as<std::string>());
  return names;
}

}  // namespace

NamedTable<CallbackType>& callback_types() {
  static NamedTable<CallbackType> types = [] {
    NamedTable<CallbackType> own("callback");
    own.add(log_callback());
    own.add(prediction_saver());
    own.add(tf_records_saver());
    own.add(collector());
    own.add(statistics());
    own.add(summary());
    own.add(topk());
    own.add(confusion());
    return own;
  }();
  return types;
}

std::vector<WantedCallback> read_callbacks(ConfigReader in) {
  std::vector<WantedCallback> wanted;
  for (const std::string& name : names_in(in)) {
    ConfigReader section = in.section(name);
    const CallbackType* const type = read_type(&in, name, &section);
    if (type == nullptr) continue;
    std::vector<Mode> modes = read_modes(&section, type->modes);
    MakeCallback make = type->read(&section);
    section.done();
    wanted.push_back({name, std::move(modes), std::move(make)});
  }
  in.done();
  return wanted;
}

/// The second one's files would replace the first one's.
void require_own_files(const std::vector<NamedCallback>& callbacks) {
  std::map<std::string, std::string> owners;
  for (const NamedCallback& each : callbacks) {
    const std::string files = each.callback->stores_as();
    if (files.empty()) continue;
    const auto [found, is_new] = owners.emplace(files, each.name);
    if (!is_new)
      throw Error(ExitCode::kConfig, "callbacks",
                  fmt::format("callbacks '{}' and '{}' both write {} in one folder: make one of "
                              "them, give savers another save_prefix or save_suffix each, or other "
                              "modes",
                              found->second, each.name, files))
          .everywhere();
  }
}

std::vector<NamedCallback> make_callbacks(const std::vector<WantedCallback>& wanted, Mode mode,
                                          const Services& services) {
  std::vector<NamedCallback> callbacks;
  for (const WantedCallback& each : wanted)
    if (std::find(each.modes.begin(), each.modes.end(), mode) != each.modes.end())
      callbacks.push_back({each.name, each.make(services)});
  require_own_files(callbacks);
  return callbacks;
}

}  // namespace lockstep::coord
