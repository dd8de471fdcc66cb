// Reads section `callbacks` and makes the callbacks of a mode. No two of them may write one file or
// show one KPI.
#include "coord/callback_types.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/log.h"

namespace lockstep::coord {
namespace {

constexpr Mode kModes[] = {Mode::kTrain, Mode::kEval, Mode::kInfer};
const std::vector<std::string> kModeNames = {mode_name(kModes[0]), mode_name(kModes[1]),
                                             mode_name(kModes[2])};

/// Reads `modes`; unknown names and an empty list are faults.
std::vector<Mode> read_modes(ConfigReader* in, std::vector<std::string> names) {
  in->read("modes", &names, "modes: train, eval, infer");
  std::vector<Mode> modes;
  for (const std::string& name : names) {
    const auto known = std::find(kModeNames.begin(), kModeNames.end(), name);
    if (known == kModeNames.end())
      in->fault("modes", fmt::format("unknown mode '{}'{}; available: train, eval, infer", name,
                                     did_you_mean(name, kModeNames)));
    else
      modes.push_back(kModes[known - kModeNames.begin()]);
  }
  if (names.empty())
    in->fault("modes",
              "'modes' is empty, so the callback would never run: remove the key for the default "
              "modes, or remove the callback");
  return modes;
}

/// Returns the row of a type; null, with a fault, if there is none.
const CallbackType* read_type(ConfigReader* in, const std::string& name, ConfigReader* section) {
  std::string type = name;
  const bool is_said = section->read("type", &type, "callback type, if not its name");
  const CallbackType* const found = callback_types().find(type);
  if (found != nullptr) return found;
  const std::vector<std::string> known = callback_types().names();
  const std::string text = fmt::format("unknown callback '{}'{}; available: {}", type,
                                       did_you_mean(type, known), fmt::join(known, ", "));
  if (is_said)
    section->fault("type", text);
  else
    in->fault(name, text + "; with a custom name, set its type");
  return nullptr;
}

// Keys of the section; for the reference page, all types.
std::vector<std::string> names_in(const ConfigReader& in) {
  if (in.lists_fields()) return callback_types().names();
  std::vector<std::string> names;
  if (in.node().IsMap())
    for (const auto& pair : in.node()) names.push_back(pair.first.as<std::string>());
  return names;
}

/// Owner of each KPI: the callback that shows it.
class KpiOwners {
 public:
  explicit KpiOwners(std::vector<std::string> figures) : figures_(std::move(figures)) {}

  // Throws on every rank alike: callbacks and their KPIs are the same everywhere.
  void take(const std::string& kpi, const std::string& callback) {
    if (std::find(figures_.begin(), figures_.end(), kpi) != figures_.end())
      refuse(
          fmt::format("callback '{}' shows a KPI '{}', which is the name of a value of each "
                      "evaluation: give it another name, or other modes",
                      callback, kpi));
    const auto [found, is_new] = owners_.emplace(kpi, callback);
    if (!is_new && found->second != callback)
      refuse(
          fmt::format("callbacks '{}' and '{}' both show a KPI '{}': only one of them can have the "
                      "name; remove one of them, or give them other modes",
                      found->second, callback, kpi));
  }

 private:
  [[noreturn]] static void refuse(const std::string& text) {
    throw Error(ExitCode::kConfig, "callbacks", text).everywhere();
  }

  const std::vector<std::string> figures_;
  std::map<std::string, std::string> owners_;
};

/// Returns the services for one callback; a KPI that it sets must not belong to another.
Services with_own_kpis(const Services& services, const std::string& callback,
                       const std::shared_ptr<KpiOwners>& owners) {
  Services own = services;
  own.set_kpi = [set_kpi = services.set_kpi, callback, owners](const std::string& name,
                                                               double value) {
    // Checked at each value: some evaluators know their KPIs only during the run.
    owners->take(name, callback);
    if (set_kpi) set_kpi(name, value);
  };
  return own;
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

bool is_incomplete_pass(const CallbackContext& context, const std::string& file) {
  const bool is_half = context.is_broken_off && !context.is_training();
  if (is_half && context.rank == 0)
    log::warning("callbacks", fmt::format("{} is not written: a stop or an error ended it before "
                                          "its last iteration, so its data are incomplete",
                                          (context.log_dir / file).string()));
  return is_half;
}

std::vector<WantedCallback> read_callbacks(ConfigReader in, std::optional<Mode> only) {
  std::vector<WantedCallback> wanted;
  for (const std::string& name : names_in(in)) {
    ConfigReader section = in.section(name);
    const CallbackType* const type = read_type(&in, name, &section);
    if (type == nullptr) continue;
    // A section of one mode allows only that mode.
    std::vector<Mode> modes =
        read_modes(&section, only ? std::vector<std::string>{mode_name(*only)} : type->modes);
    if (only && !modes.empty() && std::find(modes.begin(), modes.end(), *only) == modes.end())
      section.fault("modes", fmt::format("'{}' are those of mode {}, which 'modes' lacks, so the "
                                         "callback would never run: remove the key",
                                         in.path(), mode_name(*only)));
    MakeCallback make = type->read(&section);
    section.done();
    wanted.push_back({name, std::move(modes), std::move(make)});
  }
  in.done();
  return wanted;
}

/// Throws if two callbacks would overwrite each other's files.
void require_own_files(const std::vector<NamedCallback>& callbacks) {
  std::map<std::string, std::string> owners;
  for (const NamedCallback& each : callbacks) {
    const std::string files = each.callback->stores_as();
    if (files.empty()) continue;
    const auto [found, is_new] = owners.emplace(files, each.name);
    if (!is_new)
      throw Error(ExitCode::kConfig, "callbacks",
                  fmt::format("callbacks '{}' and '{}' both write {} in one folder: merge them, "
                              "give each saver another save_prefix or save_suffix, or other modes",
                              found->second, each.name, files))
          .everywhere();
  }
}

std::vector<NamedCallback> make_callbacks(const std::vector<WantedCallback>& wanted, Mode mode,
                                          const Services& services) {
  const auto owners = std::make_shared<KpiOwners>(services.own_figures);
  std::vector<NamedCallback> callbacks;
  for (const WantedCallback& each : wanted)
    if (std::find(each.modes.begin(), each.modes.end(), mode) != each.modes.end())
      callbacks.push_back({each.name, each.make(with_own_kpis(services, each.name, owners))});
  require_own_files(callbacks);
  for (const NamedCallback& each : callbacks)
    for (const std::string& kpi : each.callback->kpi_names()) owners->take(kpi, each.name);
  return callbacks;
}

}  // namespace lockstep::coord
