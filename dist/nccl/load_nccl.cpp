// Opens the NCCL module on demand, so that programs run on hosts without CUDA.
#include "dist/nccl/load_nccl.h"

#include <array>
#include <cstdlib>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/process.h"

namespace lockstep::dist {
namespace {

constexpr const char* kVariable = "LOCKSTEP_NCCL_MODULE";

Error unavailable(const std::string& message) {
  return {ExitCode::kUnavailable, "dist.nccl", message};
}

std::filesystem::path find_module() {
  std::vector<std::string> tried;
  for (const std::filesystem::path& path : nccl_module_paths()) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(path, ignored)) return path;
    tried.push_back(path.string());
  }
  throw unavailable(fmt::format(
      "GPUs need the module {}, which does not exist at {}: build with LOCKSTEP_CUDA=on "
      "(`LOCKSTEP_CUDA=on tools/setup` installs what that needs), or name its path in {}",
      nccl::kModuleFile, fmt::join(tried, ", "), kVariable));
}

/// Opens the module for the rest of the process, since objects of its classes may live that long.
const nccl::ModuleTable& open_module() {
  const std::string path = find_module().string();
  // RTLD_LOCAL: symbols of CUDA must not replace those of the program.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    throw unavailable(fmt::format(
        "cannot open {}: {} (it needs LibTorch's libc10_cuda.so and NCCL's libnccl.so.2)", path,
        dl_error()));
  const auto* table = static_cast<const nccl::ModuleTable*>(dlsym(library, nccl::kModuleSymbol));
  if (table == nullptr)
    throw unavailable(fmt::format("{} is not an NCCL module of Lockstep: {}", path, dl_error()));
  // Classes pass between both sides, so their layouts must be equal.
  if (std::string_view(table->build_id) != LOCKSTEP_BUILD_ID)
    throw unavailable(fmt::format("{} is of build '{}', this program of '{}': build both together",
                                  path, table->build_id, LOCKSTEP_BUILD_ID));
  return *table;
}

}  // namespace

std::vector<std::filesystem::path> nccl_module_paths() {
  if (const char* path = std::getenv(kVariable); path != nullptr && *path != '\0') return {path};
  std::error_code fault;
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", fault).parent_path();
  return {folder / nccl::kModuleFile,
          (folder / "../lib/lockstep").lexically_normal() / nccl::kModuleFile};
}

std::vector<std::string> nccl_device_ids() {
  const nccl::ModuleTable& module = open_module();
  std::vector<std::string> ids;
  for (int index = 0; index < module.num_devices(); ++index) {
    std::array<char, nccl::kDeviceIdBytes> id{};
    module.device_id(index, id.data());
    ids.emplace_back(id.data());
  }
  return ids;
}

GpuMemoryFacts set_up_gpu_memory(int device_index, const GpuMemoryOptions& options) {
  return open_module().set_up_memory(device_index, options);
}

GpuMemoryUse gpu_memory_use(int device_index) { return open_module().memory_use(device_index); }

std::string nccl_version() {
  const int code =
      open_module().nccl_version();  // since NCCL 2.9: 10000 * major + 100 * minor + patch
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, int device_index,
                                                     double timeout_s) {
  // Collective: without it, ranks that have the module would wait inside NCCL for one that has not.
  const nccl::ModuleTable* table = on_all_ranks(control, [] { return &open_module(); });
  return std::unique_ptr<Communicator>(table->make_communicator(control, device_index, timeout_s));
}

}  // namespace lockstep::dist
