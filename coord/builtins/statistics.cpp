#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "coord/buffers/buffer_callback.h"
#include "coord/builtins/builtins.h"
#include "coord/savers/split_batch.h"

namespace lockstep::coord {
namespace {

using Json = nlohmann::ordered_json;

/// Returns a number, or a list in row-major order.
Json list_of(const at::Tensor& tensor) {
  const at::Tensor numbers = on_cpu(tensor).to(at::kDouble);
  const auto* const first = static_cast<const double*>(numbers.const_data_ptr());
  if (numbers.dim() == 0) return *first;
  return std::vector<double>(first, first + numbers.numel());
}

/// Statistics: writes statistics.json with count, shape, and element-wise mean, variance, minimum
/// and maximum of each key. They cover the samples present at the end. At each earlier `evaluate`
/// it writes statistics-<iteration>.json. Statistics over all ranks are written on rank 0.
class Statistics : public BufferCallback {
 public:
  Statistics(const BufferOptions& options, const Services& services)
      : BufferCallback(options, std::make_unique<StatsBuffer>(), services),
        is_of_all_ranks_(options.gather) {}

  std::string stores_as() const override { return "statistics.json"; }
  void end() override {
    if (is_half_told(context(), "statistics.json")) return;
    is_end_ = true;
    // Collective with `gather`: every rank must come here.
    evaluate();
  }
  void begin() override {
    BufferCallback::begin();
    is_end_ = false;
  }

 protected:
  std::optional<DataMap> process_buffer(const DataMap& data) override {
    if (is_of_all_ranks_ && context().rank != 0) return DataMap();  // rank 0 writes the same values
    Json all = Json::object();
    for (const auto& [key, value] : data.values()) {
      const DataMap& stats = data.map(key);
      all[key]["count"] = stats.tensor("count").item<int64_t>();
      all[key]["shape"] = stats.tensor("mean").sizes().vec();
      for (const char* const name : {"mean", "variance", "minimum", "maximum"})
        all[key][name] = list_of(stats.tensor(name));
    }
    if (all.empty()) return DataMap();
    files::make_folders(context().log_dir);
    files::write_atomically(context().log_dir / file_name(), all.dump(2) + "\n");
    return DataMap();
  }

 private:
  std::string file_name() const {
    if (is_end_) return "statistics.json";
    return fmt::format("statistics-{:06}.json", context().iteration_info.iteration_number);
  }

  bool is_end_ = false;
  const bool is_of_all_ranks_;
};

}  // namespace

CallbackType statistics() {
  return {.name = "statistics", .read = [](ConfigReader* in) -> MakeCallback {
            BufferOptions options;
            options.keys =
                read_keys(in, "statistics: tensors of which they are taken; '_x' is optional");
            options.not_batch_keys = read_not_batch_keys(
                in, "statistics: those of the keys that are not by sample", options.keys);
            options.gather = true;
            in->read("gather", &options.gather,
                     "statistics: of the samples of all ranks, instead of each rank's own");
            return [=](const Services& services) {
              return std::make_unique<Statistics>(options, services);
            };
          }};
}

}  // namespace lockstep::coord
