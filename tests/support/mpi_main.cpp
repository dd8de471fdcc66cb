// main() of every rank test: starts MPI, runs every test on every rank, and returns on all ranks 1
// if a test failed on any, 77 if all tests were skipped, else 0. Rank 0 prints as GoogleTest does;
// the others print failures only, with their rank. A rank that cannot continue a test
// (ASSERT_..., an exception) ends the world, since its peers would wait for it.
#include "tests/support/mpi_world.h"

#include <cstdio>
#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/communicator.h"

#ifdef __SANITIZE_ADDRESS__
/// Open MPI leaves memory behind at its end, from parts that are unloaded by then and have no name.
/// Leaks of ours are looked for in the tests that start no MPI.
extern "C" const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

namespace lockstep::tests {
namespace {

constexpr int kSkipped = 77;  // for CTest's SKIP_RETURN_CODE

std::unique_ptr<dist::mpi::World>& world_slot() {
  static std::unique_ptr<dist::mpi::World> world;
  return world;
}

class RankPrinter final : public ::testing::EmptyTestEventListener {
 public:
  explicit RankPrinter(bool prints) : prints_(prints) {}

  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    if (prints_) {
      const std::string text = fmt::format("[rank {}] {}:{}: {}\n", mpi_world().process_info().rank,
                                           result.file_name() == nullptr ? "?" : result.file_name(),
                                           result.line_number(), result.message());
      std::fputs(text.c_str(), stderr);
    }
    if (result.fatally_failed()) mpi_world().abort(1);
  }

 private:
  bool prints_;
};

int run_on_all_ranks() {
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  const bool is_first = mpi_world().process_info().rank == 0;
  if (!is_first) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new RankPrinter(!is_first));
  const bool failed_here = RUN_ALL_TESTS() != 0;
  const auto comm = mpi_world().make_communicator();
  if (dist::any_of(*comm, failed_here)) return 1;
  const auto& tests = *::testing::UnitTest::GetInstance();
  const bool ran_here = tests.skipped_test_count() < tests.test_to_run_count();
  return dist::any_of(*comm, ran_here) ? 0 : kSkipped;
}

}  // namespace

dist::mpi::World& mpi_world() {
  check(world_slot() != nullptr, "MPI is not running");
  return *world_slot();
}

}  // namespace lockstep::tests

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  lockstep::tests::world_slot() = std::make_unique<lockstep::dist::mpi::World>();
  const int exit_code = lockstep::tests::run_on_all_ranks();
  lockstep::tests::world_slot().reset();
  return exit_code;
}
