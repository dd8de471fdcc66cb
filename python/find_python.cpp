#include "python/find_python.h"

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

#include <ATen/Version.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/process/shell.h"

namespace lockstep::python {
namespace {

namespace fs = std::filesystem;

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
    refuse(
        fmt::format("{} (Python {}) has no shared library libpython, so that it cannot run "
                    "inside this program: install one that has (Debian: libpython3-dev; pyenv: "
                    "--enable-shared)",
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

}  // namespace

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

}  // namespace lockstep::python
