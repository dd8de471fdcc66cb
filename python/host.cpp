#include "python/host.h"

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files/files.h"
#include "base/log.h"
#include "base/process_state.h"
#include "python/find_python.h"
#include "python/python_module.h"

namespace lockstep::python {
// The module and libpython are loaded once and never closed (RTLD_NODELETE), since the interpreter
// stays. libpython is loaded RTLD_GLOBAL: extension modules (numpy, torch) need its symbols.
namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "LOCKSTEP_PYTHON_MODULE";

struct Running {
  const ModuleTable* table = nullptr;  ///< null before start()
  std::string program;
  bool is_of_run = false;  ///< named by the current run
};
Running& running() {
  static Running one;
  return one;
}

/// Starts another job in this process. The interpreter stays. Modules of users are reloaded.
void begin_job() {
  running().is_of_run = false;
  if (running().table != nullptr) (void)running().table->call("begin_job", {});
}

const ProcessState modules_of_users("Python modules of users", begin_job);

Error unavailable(const std::string& message) {
  return {ExitCode::kUnavailable, "python", message};
}

std::string dl_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown reason" : text;
}

/// Places of the module: named by the environment, next to the program, or in an installed tree.
std::vector<fs::path> module_paths() {
  if (const char* path = std::getenv(kVariable); path != nullptr && *path != '\0') return {path};
  std::error_code fault;
  const auto folder = fs::read_symlink("/proc/self/exe", fault).parent_path();
  return {folder / kModuleFile, (folder / "../lib/lockstep").lexically_normal() / kModuleFile,
          (folder / "../../lib/lockstep").lexically_normal() / kModuleFile};
}

fs::path find_module() {
  std::vector<std::string> tried;
  for (const fs::path& path : module_paths()) {
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return path;
    tried.push_back(path.string());
  }
  throw unavailable(
      fmt::format("Python code needs the module {}, and there is none at {}: build "
                  "where Python's headers are (Debian: libpython3-dev), or name its "
                  "path in {}",
                  kModuleFile, fmt::join(tried, ", "), kVariable));
}

const ModuleTable& open_module(const fs::path& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    throw unavailable(fmt::format("cannot open {}: {}", path.string(), dl_error()));
  const auto* table = static_cast<const ModuleTable*>(dlsym(library, kModuleSymbol));
  if (table == nullptr)
    throw unavailable(
        fmt::format("{} is no Python module of Lockstep: {}", path.string(), dl_error()));
  // The table's layout may differ between builds, except for its first field.
  if (std::string_view(table->build_id) != LOCKSTEP_BUILD_ID)
    throw unavailable(fmt::format("{} is of build '{}', this program of '{}': build both together",
                                  path.string(), table->build_id, LOCKSTEP_BUILD_ID));
  return *table;
}

/// Sets variables that must be equal on all ranks, or that libraries read when they load.
void set_environment() {
  ::setenv("PYTHONHASHSEED", "0", /*overwrite=*/0);
  ::setenv("OPENBLAS_NUM_THREADS", "1", /*overwrite=*/0);  // numpy's BLAS in data sets
}

}  // namespace

bool is_running() { return running().table != nullptr; }

std::string module_version() {
  const fs::path path = find_module();
  // Searches the file: loading it would need libpython.
  if (files::read(path).find(LOCKSTEP_BUILD_ID) == std::string::npos)
    throw unavailable(
        fmt::format("{} is not of this program's build: build both together", path.string()));
  return fmt::format("for Python 3.10 and later, {}", path.string());
}

void start(const std::string& wanted) {
  static std::mutex mutex;
  // Several sections of a run file may name Python: only the first call starts it.
  const std::scoped_lock lock(mutex);
  const bool is_of_run = std::exchange(running().is_of_run, true);
  // A section without an interpreter accepts the one that this run has named already.
  if (is_running() && ((wanted.empty() && is_of_run) || wanted == running().program)) return;
  const Interpreter python = find_python(wanted);
  if (is_running()) {
    if (python.program == running().program) return;
    if (!is_of_run)
      throw unavailable(
          fmt::format("an earlier job runs {} in this process, and {} is asked for: start the "
                      "server again",
                      running().program, python.program));
    throw Error(ExitCode::kConfig, "python",
                fmt::format("one process runs one Python: {} runs, {} is asked for too; name the "
                            "same with `python:` everywhere",
                            running().program, python.program));
  }
  const fs::path module = find_module();
  set_environment();
  if (dlopen(python.library.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE) == nullptr)
    throw unavailable(fmt::format("cannot open {}: {}", python.library, dl_error()));
  const ModuleTable& table = open_module(module);
  const std::string fault =
      table.start({.program = python.program, .glue_folder = module.parent_path().string()});
  if (!fault.empty())
    throw Error(ExitCode::kConfig, "python",
                fmt::format("{} cannot be used: {}", python.program, fault));
  // Set last: after a failure the next start() tries again.
  running() = {&table, python.program, true};
  log::info("python", fmt::format("Python {}, torch {}, {}", python.version, python.torch_version,
                                  python.program));
}

Value call(const char* function, const List& arguments, ExitCode code) {
  check(is_running(), "Python code runs after start()");
  CallResult result = running().table->call(function, arguments);
  if (!result.fault.empty()) throw Error(code, "python", result.fault);
  return std::move(result.value);
}

void throw_pending_fault() {
  if (!is_running()) return;
  const std::string fault = running().table->pending_fault();
  if (!fault.empty()) throw Error(ExitCode::kConfig, "python", fault);
}

void flush() {
  if (is_running()) (void)running().table->call("flush", {});
}

}  // namespace lockstep::python
