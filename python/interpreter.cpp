#include "python/interpreter.h"

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/Version.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "base/log.h"
#include "base/module.h"
#include "base/process.h"

namespace lockstep::python {

namespace {

namespace fs = std::filesystem;

/// Python interpreter and its torch.
struct Interpreter {
  std::string program;        ///< sys.executable
  std::string library;        ///< libpython, to be loaded; empty if this Python has none
  std::string version;        ///< such as 3.11.2
  std::string torch_version;  ///< such as 2.11.0+cu130; empty without torch
  std::string torch_commit;   ///< commit of PyTorch's repository
};

/// Script that asks an interpreter without importing torch, which takes seconds.
constexpr const char* kQuestion = R"(
import importlib.util, json, pathlib, sys, sysconfig
spec = importlib.util.find_spec('torch')
torch = {}
if spec is not None and spec.origin is not None:
    exec(pathlib.Path(spec.origin).with_name('version.py').read_text(), torch)
name, folder = sysconfig.get_config_var('INSTSONAME'), sysconfig.get_config_var('LIBDIR')
folders = [folder, sysconfig.get_config_var('LIBPL'), sys.base_prefix + '/lib']
multiarch = sysconfig.get_config_var('MULTIARCH')
if multiarch:
    folders += [str(folder) + '/' + multiarch, '/usr/lib/' + multiarch]
shared = [str(pathlib.Path(f) / name) for f in folders if f and name and '.so' in name and (pathlib.Path(f) / name).is_file()]
print(json.dumps({'program': sys.executable, 'library': shared[0] if shared else '', 'version': sys.version.split()[0],
                  'torch_version': str(torch.get('__version__', '')), 'torch_commit': str(torch.get('git_version', ''))}))
)";

std::optional<Interpreter> ask(const std::string& program) {
  const ShellResult answer =
      run_in_shell(shell_quoted(program) + " -c " + shell_quoted(kQuestion) + " 2>/dev/null");
  if (answer.exit_code != 0) return std::nullopt;
  const auto json = nlohmann::json::parse(answer.text, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  return Interpreter{.program = json.value("program", ""),
                     .library = json.value("library", ""),
                     .version = json.value("version", ""),
                     .torch_version = json.value("torch_version", ""),
                     .torch_commit = json.value("torch_commit", "")};
}

/// Values TORCH_VERSION and COMMIT_SHA of the linked LibTorch.
struct LinkedTorch {
  std::string version, commit;
};
LinkedTorch linked_torch() {
  // LibTorch has no function for these values: they are in its build description.
  const std::string config = at::show_config();
  const auto value_of = [&](const std::string& key) {
    const size_t at = config.find(key + "=");
    if (at == std::string::npos) return std::string();
    const size_t begin = at + key.size() + 1;
    return config.substr(begin, config.find_first_of(", \n", begin) - begin);
  };
  return {value_of("TORCH_VERSION"), value_of("COMMIT_SHA")};
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ExitCode::kConfig, "python", message);
}

bool has_linked_torch(const Interpreter& python) {
  // The commit decides: tensors cross the border as pointers, so both sides need the same ABI.
  return python.torch_commit == linked_torch().commit;
}

void require_usable(const Interpreter& python) {
  const LinkedTorch linked = linked_torch();
  const std::string release = linked.version.substr(0, linked.version.find('+'));
  if (python.torch_version.empty())
    refuse(
        fmt::format("{} (Python {}) has no torch: install torch=={} there, or name another "
                    "interpreter with `python:` in the run file",
                    python.program, python.version, release));
  if (!has_linked_torch(python))
    refuse(
        fmt::format("{} has torch {} (commit {}), this program is linked to {} (commit {}): "
                    "install torch=={} there, or name another interpreter with `python:`",
                    python.program, python.torch_version, python.torch_commit.substr(0, 10),
                    linked.version, linked.commit.substr(0, 10), release));
  if (python.library.empty())
    refuse(fmt::format(
        "{} (Python {}) has no shared library libpython, so it cannot run inside this program: "
        "install one that has (Debian: libpython3-dev; pyenv: --enable-shared)",
        python.program, python.version));
}

/// Finds the interpreter of the environment that contains LibTorch:
/// .../lib/python3.11/site-packages/torch/lib/libtorch_cpu.so -> .../bin/python3
std::string python_beside_torch() {
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&at::show_config), &library) == 0) return "";
  fs::path folder = library.dli_fname;
  for (int i = 0; i < 6; ++i) folder = folder.parent_path();
  const fs::path program = folder / "bin" / "python3";
  std::error_code ignored;
  return fs::exists(program, ignored) ? program.string() : "";
}

/// Interpreters to try if none is named, in this order.
std::vector<std::string> usual_programs() {
  std::vector<std::string> programs;
  // An active environment is an explicit choice: no other interpreter is tried then.
  if (const char* folder = std::getenv("VIRTUAL_ENV"); folder != nullptr && *folder != '\0')
    return {(fs::path(folder) / "bin" / "python3").string()};
  programs.emplace_back("python3");
  if (const std::string beside = python_beside_torch(); !beside.empty()) programs.push_back(beside);
  return programs;
}

/// Finds the interpreter for a run: `wanted` if not empty, else that of the active virtual
/// environment ($VIRTUAL_ENV). Else python3 of $PATH if its torch is the linked one. Else the one
/// of the environment that contains the linked LibTorch.
///
/// Throws Error(kConfig), naming the interpreter and the reason, if it is not usable. Reasons: it
/// cannot be started, has no shared library, or has another torch than the linked one.
Interpreter find_python(const std::string& wanted) {
  const std::vector<std::string> programs =
      wanted.empty() ? usual_programs() : std::vector<std::string>{wanted};
  std::optional<Interpreter> first;
  for (const std::string& program : programs) {
    const auto python = ask(program);
    if (python && has_linked_torch(*python) && !python->library.empty()) return *python;
    // The first one that starts is named in the message if none is usable.
    if (python && !first) first = python;
  }
  if (!first)
    refuse(
        fmt::format("'{}' cannot be started: name a Python 3.10 or later with `python:` in the "
                    "run file, or activate a virtual environment",
                    programs.front()));
  require_usable(*first);
  return *first;
}

// The module and libpython are loaded once and never closed (RTLD_NODELETE), since the interpreter
// stays. libpython is loaded RTLD_GLOBAL: extension modules (numpy, torch) need its symbols.

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
      fmt::format("Python code needs the module {}, which does not exist at {}: build with "
                  "Python's headers (Debian: libpython3-dev), or name its path in {}",
                  kModuleFile, fmt::join(tried, ", "), kVariable));
}

const ModuleTable& open_table(const fs::path& path) {
  return *static_cast<const ModuleTable*>(
      open_module(path, kModuleSymbol, LOCKSTEP_BUILD_ID, "python", "a Python module"));
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
        fmt::format("{} is not from this program's build: build both together", path.string()));
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
      throw unavailable(fmt::format(
          "an earlier job uses {} in this process, and {} is requested: restart the server",
          running().program, python.program));
    throw Error(ExitCode::kConfig, "python",
                fmt::format("a process can run only one Python: {} runs, {} is requested too; name "
                            "the same with `python:` everywhere",
                            running().program, python.program));
  }
  const fs::path module = find_module();
  set_environment();
  if (dlopen(python.library.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE) == nullptr)
    throw unavailable(fmt::format("cannot open {}: {}", python.library, dl_error()));
  const ModuleTable& table = open_table(module);
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
