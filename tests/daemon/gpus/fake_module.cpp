// A stand-in for the NCCL module: GPUs that are not there, for the logic that chooses and divides
// them. LOCKSTEP_TEST_GPUS names those of the host, CUDA_VISIBLE_DEVICES which of them a process
// sees, as CUDA does: "2,3" makes the third and fourth 0 and 1.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <c10/util/Exception.h>

#include "base/error.h"
#include "dist/nccl/gpu_memory.h"
#include "dist/nccl/load_nccl.h"

namespace lockstep::dist::nccl {
namespace {

std::vector<std::string> listed_in(const char* variable) {
  std::vector<std::string> all;
  const char* text = std::getenv(variable);
  std::istringstream in(text == nullptr ? "" : text);
  for (std::string one; std::getline(in, one, ',');) all.push_back(one);
  return all;
}

std::vector<std::string> visible() {
  const std::vector<std::string> host = listed_in("LOCKSTEP_TEST_GPUS");
  if (std::getenv("CUDA_VISIBLE_DEVICES") == nullptr) return host;
  std::vector<std::string> seen;
  for (const std::string& place : listed_in("CUDA_VISIBLE_DEVICES"))
    seen.push_back(host.at(std::stoul(place)));
  return seen;
}

/// Memory of 80 GiB, 8 of which another process uses.
class FakeMemory final : public MemoryCalls {
 public:
  explicit FakeMemory(int index) : id_(visible().at(static_cast<size_t>(index))) {}
  Bytes bytes() override { return {.free = int64_t{72} << 30, .total = int64_t{80} << 30}; }
  void give_back() override {}
  int64_t taken() override {
    const std::lock_guard lock(mutex);
    return taken_of[id_];
  }
  GpuMemoryUse use() override {
    const std::lock_guard lock(mutex);
    return {.allocated = 3, .reserved = taken_of[id_], .peak = 5, .num_ooms = 1};
  }
  void set_fraction(double fraction) override { fraction_ = fraction; }
  /// Rounds up and then keeps to the limit, as LibTorch's allocator.
  void reserve(int64_t num_bytes) override {
    const std::lock_guard lock(mutex);
    const int64_t rounded = (num_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    TORCH_CHECK(static_cast<double>(rounded) <= fraction_ * static_cast<double>(bytes().total),
                "out of memory");
    taken_of[id_] += rounded;
  }

 private:
  static inline std::mutex mutex;
  static inline std::map<std::string, int64_t> taken_of;
  const std::string id_;
  double fraction_ = 1;
};

int version() { return 22809; }
int num_devices() { return static_cast<int>(visible().size()); }
void device_id(int index, char* id) {
  const std::string text = visible().at(static_cast<size_t>(index));
  std::copy_n(text.c_str(), text.size() + 1, id);
}
GpuMemoryFacts set_up(int index, const GpuMemoryOptions& options) {
  FakeMemory memory(index);
  return set_up_memory(memory, options);
}
GpuMemoryUse use_of(int index) { return FakeMemory(index).use(); }
Communicator* no_communicator(Communicator& /*control*/, int /*index*/, double /*timeout_s*/) {
  throw Error(ExitCode::kUnavailable, "dist.nccl", "these GPUs are not there");
}

}  // namespace
}  // namespace lockstep::dist::nccl

extern "C" __attribute__((visibility("default")))
const lockstep::dist::nccl::ModuleTable lockstep_nccl_module{LOCKSTEP_BUILD_ID,
                                                             lockstep::dist::nccl::version,
                                                             lockstep::dist::nccl::num_devices,
                                                             lockstep::dist::nccl::device_id,
                                                             lockstep::dist::nccl::set_up,
                                                             lockstep::dist::nccl::use_of,
                                                             lockstep::dist::nccl::no_communicator};
