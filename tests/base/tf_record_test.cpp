#include "base/digest.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace tf_record_test {

using namespace std::string_literals;

// The sums come from a bit-by-bit crc32c of polynomial 0x82f63b78, in Python.
TEST(TfRecord, HoldsLengthDataAndTheirMaskedSums) {
  std::string records = "before";
  append_tf_record("123456789", &records);
  EXPECT_EQ(records,
            "before"
            "\x09\0\0\0\0\0\0\0\x37\xf9\x71\x39"
            "123456789"
            "\xe5\xb0\x8a\xc7"s);
}

TEST(TfRecord, EmptyDataIsARecordToo) {
  std::string records;
  append_tf_record("", &records);
  append_tf_record("", &records);
  const std::string one = "\0\0\0\0\0\0\0\0\x29\x03\x98\x07\xd8\xea\x82\xa2"s;
  EXPECT_EQ(records, one + one);
}

}  // namespace tf_record_test
}  // namespace lockstep
