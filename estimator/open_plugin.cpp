// The stamp in the file is read before dlopen(), so that no code of an incompatible plug-in runs.
#include "estimator/open_plugin.h"

#include <deque>
#include <filesystem>

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/process_state.h"
#include "estimator/plugin.h"
#include "estimator/user_code.h"

namespace lockstep::estimator {
namespace {

constexpr size_t kMaxShownBytes = 200;

using AddRows = void (*)();

/// File whose code remains in this process.
struct Library {
  std::string file, sha256;
  AddRows add_rows = nullptr;
};

struct Opened {
  std::deque<Library> libraries;
  std::deque<Plugin> all;  // of this run; a deque keeps their addresses
  std::vector<const Plugin*> list;
};
Opened& opened() {
  static Opened one;
  return one;
}

/// Reset between jobs; the tables drop the rows of plug-ins too (daemon/serve/job_run.cpp).
const ProcessState plugins_of_run("plug-ins of the run", [] {
  opened().list.clear();
  opened().all.clear();
});

Error refusal(const std::string& path, const std::string& why) {
  return {ExitCode::kConfig, "plugin", path + ": " + why};
}

std::string dl_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

/// Returns the stamp in the file, without running any of its code; empty if there is none.
std::string stamp_in(const std::string& bytes) {
  const size_t mark = bytes.find(LOCKSTEP_PLUGIN_MARK);
  if (mark == std::string::npos) return "";
  const std::string stamp =
      bytes.c_str() + mark + std::string_view(LOCKSTEP_PLUGIN_MARK).size();  // up to the zero
  return stamp.substr(0, kMaxShownBytes);
}

void require_fit(const std::string& path, const std::string& stamp) {
  if (stamp.empty())
    throw refusal(path,
                  "this file is no plug-in of Lockstep: its source needs LOCKSTEP_ESTIMATOR(...) "
                  "or LOCKSTEP_PLUGIN(...) of estimator/plugin.h");
  if (stamp != LOCKSTEP_PLUGIN_STAMP)
    throw refusal(path, fmt::format("was built for {}; this program is {}: build it again, against "
                                    "this one's headers",
                                    stamp, LOCKSTEP_PLUGIN_STAMP));
}

/// Opens the library. Its symbols are searched in the program first (docs/decisions/0027).
AddRows open_library(const std::string& path, const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) throw refusal(path, "cannot be opened: " + dl_error());
  const auto add_rows = reinterpret_cast<AddRows>(dlsym(library, "lockstep_plugin_add_rows"));
  if (add_rows == nullptr) throw refusal(path, "has no entry: " + dl_error());
  return add_rows;
}

/// Returns the function that adds the rows of this file. An earlier run of this process may have
/// opened it. The code remains, and dlopen() identifies it by the file's name. So a rebuilt file
/// cannot be opened here.
AddRows find_or_open(const std::string& path, const std::string& sha256) {
  const std::string file = std::filesystem::absolute(path).lexically_normal().string();
  for (const Library& known : opened().libraries) {
    if (known.sha256 == sha256) return known.add_rows;
    if (known.file == file)
      throw Error(ExitCode::kUnavailable, "plugin",
                  path + ": was built again after this process opened it; start the server again");
  }
  opened().libraries.push_back({file, sha256, open_library(path, file)});
  return opened().libraries.back().add_rows;
}

}  // namespace

const Plugin& open_plugin(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored))
    throw Error(ExitCode::kInputMissing, "plugin",
                fmt::format("{}: there is no such file, which the run file or the command line "
                            "names as a plug-in",
                            path));
  const std::string bytes = files::read(path);
  const std::string sha256 = sha256_hex(bytes);
  for (const Plugin* known : opened().list)
    if (known->sha256 == sha256) return *known;
  require_fit(path, stamp_in(bytes));
  const AddRows add_rows = find_or_open(path, sha256);
  // Rows are only appended, so the new ones follow these.
  const size_t num_before = estimator_types().names().size();
  run_user_code("plug-in " + path, add_rows);
  const std::vector<std::string> names = estimator_types().names();
  Opened& all = opened();
  all.all.push_back(
      {path, sha256, {names.begin() + static_cast<std::ptrdiff_t>(num_before), names.end()}});
  all.list.push_back(&all.all.back());
  return all.all.back();
}

const std::vector<const Plugin*>& opened_plugins() { return opened().list; }

}  // namespace lockstep::estimator
