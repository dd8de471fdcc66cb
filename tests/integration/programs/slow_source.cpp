// lockstepd with a data set whose source stands still: `slow`, random numbers of 10 classes. Rank
// LOCKSTEP_TEST_RANK ("all": every rank) waits a minute in the batch that follows
// LOCKSTEP_TEST_STEP batches, and makes the file LOCKSTEP_TEST_BLOCK.<rank> before.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "base/process/end_process.h"
#include "daemon/lockstepd.h"
#include "data/datasets/dataset_table.h"
#include "data/datasets/random_dataset.h"
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
    if (is_slow() && std::to_string(num_batches_++) == text_from("LOCKSTEP_TEST_STEP")) wait();
    return random_.get(indices_B, epoch);
  }

 private:
  static int own_rank() { return lockstep::dist::read_process_info().rank; }
  static bool is_slow() {
    const std::string rank = text_from("LOCKSTEP_TEST_RANK");
    return rank == "all" || rank == rank_text();
  }
  static const std::string& rank_text() {
    static const std::string text = std::to_string(own_rank());
    return text;
  }
  static void wait() {
    std::ofstream(text_from("LOCKSTEP_TEST_BLOCK") + "." + rank_text()) << "waits";
    std::this_thread::sleep_for(std::chrono::minutes(1));
  }

  data::RandomDataset random_{{1, 8, 8}, 10, 1000, 3};
  mutable std::atomic<int> num_batches_{0};
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
