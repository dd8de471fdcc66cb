#include "dist/nccl/load_nccl.h"

#include <cstdlib>
#include <fstream>

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/communicator.h"
#include "tests/support/require_oracle.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace load_nccl_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// LOCKSTEP_NCCL_MODULE for one test.
class ModuleVariable {
 public:
  explicit ModuleVariable(const std::string& path) {
    setenv("LOCKSTEP_NCCL_MODULE", path.c_str(), 1);
  }
  ~ModuleVariable() { unsetenv("LOCKSTEP_NCCL_MODULE"); }
};

/// Error of make_nccl_communicator on each of `world_size` ranks. The test fails if one gets a
/// communicator.
std::string refusal(int world_size) {
  std::string text;
  tests::run_ranks(world_size, [&](Communicator& control) {
    try {
      make_nccl_communicator(control, 0, 60);
      ADD_FAILURE() << "rank " << control.rank() << " got a communicator";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUnavailable);
      EXPECT_TRUE(error.on_every_rank());
      if (control.rank() == 0) text = error.what();
    }
  });
  return text;
}

TEST(LoadNccl, AMissingModuleSaysWhereItWasSoughtAndHowToGetIt) {
  const ModuleVariable variable("/nowhere/liblockstep_nccl.so");
  for (const int world_size : {1, 2})
    EXPECT_THAT(refusal(world_size),
                AllOf(HasSubstr("/nowhere/liblockstep_nccl.so"), HasSubstr("LOCKSTEP_CUDA=on"),
                      HasSubstr("tools/setup"), HasSubstr("LOCKSTEP_NCCL_MODULE")));
  EXPECT_THROW(nccl_device_ids(), Error);
}

TEST(LoadNccl, WithoutTheVariableItLooksBesideTheProgramAndInItsLibraryFolder) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path folder = program.parent_path();
  EXPECT_THAT(nccl_module_paths(),
              ::testing::ElementsAre(folder / "liblockstep_nccl.so",
                                     folder.parent_path() / "lib/lockstep/liblockstep_nccl.so"));
}

TEST(LoadNccl, AFileThatIsNoLibraryIsNamed) {
  const std::string path = ::testing::TempDir() + "no_library_" + std::to_string(getpid()) + ".so";
  std::ofstream(path) << "text";
  const ModuleVariable variable(path);
  EXPECT_THAT(refusal(1), AllOf(HasSubstr("cannot open " + path), HasSubstr("libnccl.so.2")));
  std::filesystem::remove(path);
}

TEST(LoadNccl, ALibraryThatIsNotOursIsNamed) {
  Dl_info c_library{};
  ASSERT_NE(dladdr(reinterpret_cast<void*>(&std::getenv), &c_library), 0);
  const ModuleVariable variable(std::filesystem::canonical(c_library.dli_fname));
  EXPECT_THAT(refusal(1), HasSubstr("is not an NCCL module of Lockstep"));
}

TEST(LoadNccl, WithoutAGpuTheBuiltModuleOpensAndSaysSo) {
#ifdef LOCKSTEP_TEST_NCCL_MODULE
  const ModuleVariable variable(LOCKSTEP_TEST_NCCL_MODULE);
  EXPECT_THAT(nccl_version(), ::testing::StartsWith("2."));
  if (!nccl_device_ids().empty()) GTEST_SKIP() << "there is a GPU: see dist_nccl_test";
  for (const int world_size : {1, 2})
    EXPECT_THAT(refusal(world_size), HasSubstr("no usable NVIDIA GPU"));
#else
  LOCKSTEP_MISSING_ORACLE("the NCCL module is not built here (LOCKSTEP_CUDA=on builds it)");
#endif
}

}  // namespace load_nccl_test
}  // namespace lockstep::dist
