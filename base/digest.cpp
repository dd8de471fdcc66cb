#include "base/digest.h"

#include <array>

#include <fmt/format.h>
#include <isa-l/crc.h>
#include <openssl/evp.h>

#include "base/error.h"

namespace lockstep {
namespace {

EVP_MD_CTX* as_context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  check(context_ != nullptr && EVP_DigestInit_ex(as_context(context_), EVP_sha256(), nullptr) == 1,
        "OpenSSL has no SHA-256");
}

Sha256::~Sha256() { EVP_MD_CTX_free(as_context(context_)); }

Sha256& Sha256::add(std::string_view bytes) {
  check(EVP_DigestUpdate(as_context(context_), bytes.data(), bytes.size()) == 1,
        "EVP_DigestUpdate");
  return *this;
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> bytes{};
  check(EVP_DigestFinal_ex(as_context(context_), bytes.data(), nullptr) == 1, "EVP_DigestFinal_ex");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string sha256_hex(std::string_view bytes) { return Sha256().add(bytes).hex(); }

uint32_t crc32c(std::string_view bytes, uint32_t crc) {
  // ISA-L takes an int length; larger inputs go in pieces.
  constexpr size_t kPieceBytes = size_t{1} << 30;
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kPieceBytes);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(piece.data()));
    state = crc32_iscsi(data, static_cast<int>(piece.size()), state);
    bytes.remove_prefix(piece.size());
  }
  return ~state;
}

uint32_t masked_crc32c(uint32_t crc) {
  constexpr uint32_t kMaskDelta = 0xa282ead8;
  return ((crc >> 15) | (crc << 17)) + kMaskDelta;
}

int64_t fnv1a64(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

}  // namespace lockstep
