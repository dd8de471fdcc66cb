#include "metrics/access/bcrypt.h"

#include <crypt.h>
#include <openssl/crypto.h>
#include <memory>

#include <fmt/format.h>

namespace lockstep::metrics {
namespace {

constexpr size_t kHashBytes = 60;
constexpr size_t kSettingBytes = 29;  ///< $2b$10$ and 22 characters of salt
constexpr size_t kPasswordLimitBytes = 72;
constexpr int kMinCost = 4, kMaxCost = 14;
constexpr std::string_view kAlphabet =
    "./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// True for "$2b$NN$" and 53 characters of bcrypt's alphabet.
bool has_form(std::string_view hash) {
  return hash.size() == kHashBytes &&
         (hash.starts_with("$2a$") || hash.starts_with("$2b$") || hash.starts_with("$2y$")) &&
         is_digit(hash[4]) && is_digit(hash[5]) && hash[6] == '$' &&
         hash.find_first_not_of(kAlphabet, 7) == hash.npos;
}

}  // namespace

std::string fault_of_bcrypt_hash(const std::string& hash) {
  if (!has_form(hash))
    return "is not a bcrypt hash ($2b$..., 60 characters; 'htpasswd -nBC 10 NAME' makes one)";
  const int cost = 10 * (hash[4] - '0') + (hash[5] - '0');
  if (cost < kMinCost || cost > kMaxCost)
    return fmt::format("has the cost {}: take one of {} to {}", cost, kMinCost, kMaxCost);
  return "";
}

// bcrypt would silently ignore bytes after these limits.
bool has_bcrypt_hash(std::string_view password, const std::string& hash) {
  if (password.size() > kPasswordLimitBytes || password.find('\0') != password.npos) return false;
  const auto space = std::make_unique<crypt_data>();  // 32 KiB: too much for a thread's stack
  const char* made =
      ::crypt_r(std::string(password).c_str(), hash.substr(0, kSettingBytes).c_str(), space.get());
  const std::string_view found = made == nullptr ? "" : made;
  // Constant time, so that the comparison reveals nothing about the hash.
  const bool equal =
      found.size() == hash.size() && CRYPTO_memcmp(found.data(), hash.data(), hash.size()) == 0;
  // The space contains traces of the password.
  OPENSSL_cleanse(space.get(), sizeof(*space));
  return equal;
}

}  // namespace lockstep::metrics
