// Opens the NCCL module on demand, so that programs run on hosts without CUDA.
#include "dist/nccl/load_nccl.h"

#include <array>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/module.h"

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

const nccl::ModuleTable& open_nccl() {
  return *static_cast<const nccl::ModuleTable*>(
      open_module(find_module(), nccl::kModuleSymbol, LOCKSTEP_BUILD_ID, "dist.nccl",
                  "an NCCL module", "LibTorch's libc10_cuda.so and NCCL's libnccl.so.2"));
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
  const nccl::ModuleTable& module = open_nccl();
  std::vector<std::string> ids;
  for (int index = 0; index < module.num_devices(); ++index) {
    std::array<char, nccl::kDeviceIdBytes> id{};
    module.device_id(index, id.data());
    ids.emplace_back(id.data());
  }
  return ids;
}

GpuMemoryFacts set_up_gpu_memory(int device_index, const GpuMemoryOptions& options) {
  return open_nccl().set_up_memory(device_index, options);
}

GpuMemoryUse gpu_memory_use(int device_index) { return open_nccl().memory_use(device_index); }

std::string nccl_version() {
  const int code =
      open_nccl().nccl_version();  // since NCCL 2.9: 10000 * major + 100 * minor + patch
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& control, int device_index,
                                                     double timeout_s) {
  // Collective: without it, ranks that have the module would wait inside NCCL for one that has not.
  const nccl::ModuleTable* table = on_all_ranks(control, [] { return &open_nccl(); });
  return std::unique_ptr<Communicator>(table->make_communicator(control, device_index, timeout_s));
}

}  // namespace lockstep::dist
