#include "train/gradients/autocast.h"

#include <ATen/autocast_mode.h>

#include "base/error.h"

namespace lockstep::train {

Autocast::Autocast(const std::string& precision, at::Device device)
    : is_on_(precision != "fp32"), device_type_(device.type()) {
  if (!is_on_) return;
  check(precision == "bf16" || precision == "fp16", "precision: fp32, bf16 or fp16");
  was_enabled_ = at::autocast::is_autocast_enabled(device_type_);
  dtype_before_ = at::autocast::get_autocast_dtype(device_type_);
  at::autocast::set_autocast_dtype(device_type_, precision == "bf16" ? at::kBFloat16 : at::kHalf);
  at::autocast::set_autocast_enabled(device_type_, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!is_on_) return;
  // The cache holds converted copies of the weights, which will change.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_type_, was_enabled_);
  at::autocast::set_autocast_dtype(device_type_, dtype_before_);
}

}  // namespace lockstep::train
