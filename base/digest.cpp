// SHA-256 by OpenSSL, CRC-32C by ISA-L. Joining crcs is arithmetic with polynomials over GF(2), as
// in zlib's crc32_combine().
#include "base/digest.h"

#include <array>
#include <bit>

#include <fmt/format.h>
#include <isa-l/crc.h>
#include <openssl/evp.h>

#include "base/error.h"

namespace lockstep {
namespace {

/// The header has no OpenSSL types, so the context is a void pointer there.
EVP_MD_CTX* as_context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

/// Polynomials over GF(2) of a degree below that of CRC-32C's polynomial. The highest bit is x^0.
constexpr uint32_t kOne = 0x80000000;
constexpr uint32_t kPolynomial = 0x82f63b78;
constexpr uint32_t kMaskDelta = 0xa282ead8;

/// Returns a * x modulo the polynomial.
constexpr uint32_t times_x(uint32_t a) { return (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0); }

constexpr uint32_t polynomial_product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (; a != 0; a <<= 1, b = times_x(b))
    if ((a & kOne) != 0) sum ^= b;
  return sum;
}

/// Returns x^(8 * 2^i) for each i: the factor by which 2^i following bytes change a crc.
constexpr std::array<uint32_t, 63> powers_of_bytes() {
  std::array<uint32_t, 63> powers{};
  powers[0] = kOne >> 8;
  for (size_t i = 1; i < powers.size(); ++i)
    powers[i] = polynomial_product(powers[i - 1], powers[i - 1]);
  return powers;
}

// The format is little-endian.
static_assert(std::endian::native == std::endian::little,
              "lengths and sums are written in native byte order");

template <typename T>
std::string_view bytes_of(const T& number) {
  return {reinterpret_cast<const char*>(&number), sizeof number};
}

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
  // ISA-L takes the length as an int, so larger inputs are split.
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

uint32_t crc32c_joined(uint32_t first, uint32_t second, int64_t second_num_bytes) {
  static constexpr auto kPowers = powers_of_bytes();
  // Multiplies by x^(8 * length), one power of two of the length at a time.
  for (size_t i = 0; (second_num_bytes >> i) != 0; ++i)
    if (((second_num_bytes >> i) & 1) != 0) first = polynomial_product(kPowers[i], first);
  return first ^ second;
}

uint32_t masked_crc32c(uint32_t crc) { return std::rotr(crc, 15) + kMaskDelta; }

uint32_t unmasked_crc32c(uint32_t masked) { return std::rotl(masked - kMaskDelta, 15); }

int64_t fnv1a64(std::string_view bytes) {
  // Offset basis and prime of 64-bit FNV-1a.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return static_cast<int64_t>(hash);
}

void append_tf_record(std::string_view data, std::string* records) {
  const uint64_t length = data.size();
  const uint32_t length_sum = masked_crc32c(crc32c(bytes_of(length)));
  const uint32_t sum = masked_crc32c(crc32c(data));
  records->append(bytes_of(length)).append(bytes_of(length_sum));
  records->append(data).append(bytes_of(sum));
}

}  // namespace lockstep
