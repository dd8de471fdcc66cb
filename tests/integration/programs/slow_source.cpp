// lockstepd with a data set whose source stands still: `slow`, random numbers of 10 classes. Its
// threads wait for a minute in each batch behind the first ones: LOCKSTEP_TEST_BATCHES ("6,5": of
// ranks 0 and 1) says how many come; none: all do. A rank that waits makes the file
// LOCKSTEP_TEST_BLOCK.<rank>.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "base/process.h"
#include "daemon/lockstepd.h"
#include "data/dataset_table.h"
#include "dist/process_info.h"

namespace {

namespace data = lockstep::data;

std::string text_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? text : "";
}

class SlowDataset final : public data::Dataset {
 public:
  int64_t num_samples() const override { return random_.num_samples(); }
  data::SampleSpec spec() const override { return random_.spec(); }
  std::string digest() const override { return random_.digest(); }

  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override {
    if (num_read_++ >= num_batches()) wait();
    return random_.get(indices_B, epoch);
  }

 private:
  static int own_rank() {
    static const int rank = lockstep::dist::read_process_info().rank;
    return rank;
  }
  static int num_batches() {
    std::istringstream all(text_from("LOCKSTEP_TEST_BATCHES"));
    if (all.str().empty()) return std::numeric_limits<int>::max();
    std::string one;
    for (int rank = 0; rank <= own_rank(); ++rank) std::getline(all, one, ',');
    return std::stoi(one);
  }
  static void wait() {
    std::ofstream(text_from("LOCKSTEP_TEST_BLOCK") + "." + std::to_string(own_rank())) << "waits";
    std::this_thread::sleep_for(std::chrono::minutes(1));
  }

  data::RandomDataset random_{{1, 8, 8}, 10, 1000, 3};
  mutable std::atomic<int> num_read_{0};
};

}  // namespace

int main(int argc, char** argv) {
  data::dataset_types().add({"slow", [](lockstep::ConfigReader*, data::DatasetUse) {
                               return [](const data::DatasetInputs&) {
                                 return std::make_unique<SlowDataset>();
                               };
                             }});
  lockstep::end_process(lockstep::daemon::lockstepd_main(argc, argv));
}
