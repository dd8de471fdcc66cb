// lockstepd that writes down which samples this rank trains on, as its first layer sees them: each
// step adds a line "step name name ..." to LOCKSTEP_TEST_SAMPLES/rank<r>.txt, a sample's name being
// a digest of its values.

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/digest.h"
#include "base/tensors/params.h"
#include "daemon/lockstepd.h"
#include "dist/process_info.h"

namespace {

class Witness final : public lockstep::LayerHook {
 public:
  explicit Witness(const std::string& path) : file_(path, std::ios::app) {}

  void begin_step(int64_t step) { step_ = step; }

  at::Tensor input(int64_t layer, const at::Tensor& input) override {
    if (layer == 0) write(input.detach().contiguous());
    return input;
  }
  at::Tensor weight(int64_t, const at::Tensor& weight) override { return weight; }

 private:
  void write(const at::Tensor& inputs) {
    file_ << step_;
    const auto* values = static_cast<const char*>(inputs.const_data_ptr());
    const size_t num_samples = static_cast<size_t>(inputs.size(0));
    const size_t sample_bytes = num_samples > 0 ? inputs.nbytes() / num_samples : 0;
    for (size_t i = 0; i < num_samples; ++i)
      file_ << ' ' << lockstep::sha256_hex({values + i * sample_bytes, sample_bytes}).substr(0, 12);
    file_ << std::endl;
  }

  std::ofstream file_;
  int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const char* folder = std::getenv("LOCKSTEP_TEST_SAMPLES");
  const int rank = lockstep::dist::read_process_info().rank;
  Witness witness(std::string(folder != nullptr ? folder : ".") + "/rank" + std::to_string(rank) +
                  ".txt");
  return lockstep::daemon::lockstepd_main(argc, argv,
                                          [&](int64_t step, lockstep::model::Model& model) {
                                            witness.begin_step(step);
                                            model.set_layer_hook(&witness);
                                          });
}
