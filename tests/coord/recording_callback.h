#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "coord/callbacks_handler.h"

namespace lockstep::tests {

using Calls = std::vector<std::string>;

/// Notes its calls as "name.begin" and so on; what it returns is given.
class RecordingCallback : public coord::Callback {
 public:
  using End = std::function<std::optional<coord::DataMap>(const coord::DataMap&)>;
  struct Options {
    std::string name;
    std::vector<std::string> incoming = {}, generated = {};
    coord::RunOn run_on = coord::RunOn::kRank0;
    End on_end = {};  ///< empty: each generated key, with texts of its name
  };

  RecordingCallback(Options options, Calls* calls) : options_(std::move(options)), calls_(calls) {}
  std::vector<std::string> incoming_keys() const override { return options_.incoming; }
  std::vector<std::string> generated_keys() const override { return options_.generated; }
  coord::RunOn run_on() const override { return options_.run_on; }
  void begin() override { note("begin"); }
  void on_iteration_start() override { note("start"); }
  void end() override { note("end"); }
  std::optional<coord::DataMap> on_iteration_end(const coord::DataMap& data) override {
    note("iteration");
    if (options_.on_end) return options_.on_end(data);
    coord::DataMap made;
    for (const std::string& key : options_.generated)
      made.put(coord::callback_key(key).name, std::vector<std::string>{key});
    return made;
  }
  const coord::CallbackContext& seen() const { return context(); }

 private:
  void note(const std::string& call) {
    if (calls_ != nullptr) calls_->push_back(options_.name + "." + call);
  }

  Options options_;
  Calls* calls_;
};

inline std::vector<coord::NamedCallback> recording(std::vector<RecordingCallback::Options> all,
                                                   Calls* calls = nullptr) {
  std::vector<coord::NamedCallback> callbacks;
  for (auto& options : all) {
    std::string name = options.name;
    callbacks.push_back(
        {std::move(name), std::make_unique<RecordingCallback>(std::move(options), calls)});
  }
  return callbacks;
}

/// "78 [callbacks] ...": what the call threw; empty where it threw nothing.
inline std::string fault_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
}

}  // namespace lockstep::tests
