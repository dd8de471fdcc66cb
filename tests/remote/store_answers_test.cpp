#include "remote/store_answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::remote {
namespace store_answers_test {

const std::string kPage =
    R"(<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>
<IsTruncated>true</IsTruncated><NextContinuationToken>t/1==</NextContinuationToken>
<Contents><Key>a &amp; b/1.png</Key><ETag>&quot;e1&quot;</ETag><Size>7</Size></Contents>
<Contents><Key>c</Key><ETag>"e2"</ETag><Size>0</Size></Contents></ListBucketResult>)";

TEST(UploadId, IsReadWhateverTheNameOfTheRoot) {
  for (const char* root : {"InitiateMultipartUploadResult", "InitiateMultipartUpload"})
    EXPECT_EQ(parse_upload_id(
                  std::string("<") + root + "><Key>k</Key><UploadId>u1</UploadId></" + root + ">",
                  "s3://b/k"),
              "u1");
  EXPECT_THROW((void)parse_upload_id("<UploadId>u1</UploadId>", "s3://b/k"), Error);
}

}  // namespace store_answers_test
using store_answers_test::kPage;

TEST(StoreAnswers, AListingHasKeysSizesAndTags) {
  const ListingPage page = parse_listing(kPage, "s3://b");
  EXPECT_THAT(page.objects, testing::ElementsAre(files::FileFacts{"a & b/1.png", 7, "\"e1\""},
                                                 files::FileFacts{"c", 0, "\"e2\""}));
  EXPECT_EQ(page.next_token, "t/1==");
  EXPECT_TRUE(parse_listing("<ListBucketResult/>", "s3://b").objects.empty());
}

TEST(StoreAnswers, KeysAreDecodedWhereTheStoreEncodedThem) {
  const std::string contents =
      "<Contents><Key>a+b%2Bc/%01%C3%A4.png</Key><ETag>e</ETag><Size>7</Size></Contents>";
  const auto key = [&](const std::string& encoding) {
    return parse_listing("<ListBucketResult>" + contents + encoding + "</ListBucketResult>",
                         "s3://b")
        .objects.at(0)
        .path;
  };
  EXPECT_EQ(key("<EncodingType>url</EncodingType>"), "a b+c/\x01\xC3\xA4.png");
  EXPECT_EQ(key(""), "a+b%2Bc/%01%C3%A4.png");
}

TEST(StoreAnswers, NoOtherTextPassesForAListing) {
  std::string no_size = kPage;
  no_size.replace(no_size.find("<Size>7</Size>"), 14, "");
  std::string no_token = kPage;
  no_token.replace(no_token.find("<NextC"), no_token.find("<Contents>") - no_token.find("<NextC"),
                   "");
  for (const std::string& text :
       {std::string(), std::string("<html>"), kPage.substr(0, 300),
        std::string("<Error><Code>x</Code></Error>"), no_size, no_token}) {
    try {
      (void)parse_listing(text, "s3://b/place");
      FAIL() << text;
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kIo);
      EXPECT_THAT(fault.what(), testing::HasSubstr("s3://b/place"));
    }
  }
}

TEST(StoreAnswers, AFaultHasItsCode) {
  const StoreFault fault =
      parse_fault("<Error><Code>NoSuchKey</Code><Message>It is gone.</Message></Error>");
  EXPECT_EQ(fault.code, "NoSuchKey");
  EXPECT_EQ(fault.message, "It is gone.");
  EXPECT_EQ(parse_fault("not xml").code, "");
}

}  // namespace lockstep::remote
