#include "daemon/reports/push_gateway.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "remote/message.h"

namespace lockstep::daemon {
namespace {

/// The alphabet for URLs, without padding: how a Pushgateway takes names with any bytes.
std::string base64_for_urls(const std::string& bytes) {
  constexpr const char* kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : bytes) {
    bits = (bits << 8) | static_cast<unsigned char>(c);
    for (num_bits += 8; num_bits >= 6; num_bits -= 6)
      text += kAlphabet[(bits >> (num_bits - 6)) & 63];
  }
  if (num_bits > 0) text += kAlphabet[(bits << (6 - num_bits)) & 63];
  return text;
}

}  // namespace

void push_result(const std::string& gateway, const std::string& run, const std::string& series) {
  const std::string origin = gateway.substr(0, gateway.find_last_not_of('/') + 1);
  try {
    remote::send_message(
        {.method = "PUT",
         .url = fmt::format("{}/metrics/job/lockstep/run@base64/{}", origin, base64_for_urls(run)),
         .headers = {"Content-Type: text/plain; version=0.0.4"},
         .body = series});
  } catch (const Error& fault) {  // nobody's run fails for it
    log::warning("metrics", fmt::format("metrics.pushgateway: {}", fault.what()));
  }
}

}  // namespace lockstep::daemon
