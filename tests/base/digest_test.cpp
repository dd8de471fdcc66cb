#include "base/digest.h"

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>

namespace lockstep {
namespace digest_test {

TEST(Digest, PublishedVectors) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Digest, CrcGoesOnFromAnEarlierPart) {
  EXPECT_EQ(crc32c("456789", crc32c("123")), crc32c("123456789"));
  EXPECT_EQ(crc32c_joined(crc32c("123"), crc32c("456789"), 6), crc32c("123456789"));
  EXPECT_EQ(crc32c_joined(0, crc32c("123"), 3), crc32c("123"));
  EXPECT_EQ(crc32c_joined(crc32c("123"), 0, 0), crc32c("123"));
  EXPECT_EQ(masked_crc32c(0), 0xa282ead8U);
  EXPECT_EQ(unmasked_crc32c(masked_crc32c(0x12345678)), 0x12345678U);
  const std::string zeros(70'001, '\0');
  EXPECT_EQ(crc32c_joined(crc32c("1"), crc32c(zeros), 70'001), crc32c("1" + zeros));
}

TEST(Digest, TensorBytesDoNotDependOnStrides) {
  const at::Tensor rows = at::arange(6, at::kFloat).view({2, 3});
  const at::Tensor same_through_strides = rows.t().contiguous().t();
  EXPECT_EQ(Sha256().add(rows).hex(), Sha256().add(same_through_strides).hex());
  EXPECT_NE(Sha256().add(rows).hex(), Sha256().add(rows.t()).hex());
}

}  // namespace digest_test
}  // namespace lockstep
