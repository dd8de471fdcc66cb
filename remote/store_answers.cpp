// Parsers for the XML answers of a store, by expat.
#include "remote/store_answers.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <new>

#include <curl/curl.h>
#include <expat.h>

#include "base/error.h"
#include "base/yaml/config_reader.h"

namespace lockstep::remote {
namespace {

/// Walker over XML. Calls `on_element` at the end of each element with its path from the root
/// ("Error/Code") and its own text.
class XmlWalk {
 public:
  using OnElement = std::function<void(const std::string& path, const std::string& text)>;

  explicit XmlWalk(OnElement on_element)
      : on_element_(std::move(on_element)), parser_(::XML_ParserCreate(nullptr)) {
    ::XML_SetUserData(parser_.get(), this);
    ::XML_SetElementHandler(parser_.get(), &XmlWalk::begin, &XmlWalk::end);
    ::XML_SetCharacterDataHandler(parser_.get(), &XmlWalk::take);
  }

  /// Parses a text; false if it is not well-formed.
  bool parse(std::string_view xml) {
    return ::XML_Parse(parser_.get(), xml.data(), static_cast<int>(xml.size()), 1) == XML_STATUS_OK;
  }

 private:
  static void begin(void* self, const XML_Char* name, const XML_Char** /*attributes*/) {
    auto* const walk = static_cast<XmlWalk*>(self);
    walk->path_ += (walk->path_.empty() ? "" : "/") + std::string(name);
    walk->text_.clear();
  }
  static void take(void* self, const XML_Char* text, int num_bytes) {
    static_cast<XmlWalk*>(self)->text_.append(text, static_cast<size_t>(num_bytes));
  }
  static void end(void* self, const XML_Char* /*name*/) {
    auto* const walk = static_cast<XmlWalk*>(self);
    walk->on_element_(walk->path_, walk->text_);
    const size_t slash = walk->path_.rfind('/');
    walk->path_.resize(slash == std::string::npos ? 0 : slash);
    walk->text_.clear();
  }

  struct Free {
    void operator()(XML_ParserStruct* parser) const { ::XML_ParserFree(parser); }
  };

  OnElement on_element_;
  std::unique_ptr<XML_ParserStruct, Free> parser_;
  std::string path_, text_;
};

/// Decodes a key of "encoding-type=url", where a plus sign is a space as in a form.
std::string decoded(std::string key) {
  std::replace(key.begin(), key.end(), '+', ' ');
  int num_bytes = 0;
  char* const text =
      ::curl_easy_unescape(nullptr, key.data(), static_cast<int>(key.size()), &num_bytes);
  if (text == nullptr) throw std::bad_alloc();
  key.assign(text, static_cast<size_t>(num_bytes));
  ::curl_free(text);
  return key;
}

}  // namespace

ListingPage parse_listing(std::string_view xml, const std::string& place) {
  ListingPage page;
  files::FileFacts object;
  bool has_root = false, has_more = false, has_sizes = true, is_encoded = false;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    if (path == "ListBucketResult/Contents/Key") object.path = text;
    if (path == "ListBucketResult/Contents/ETag") object.tag = text;
    if (path == "ListBucketResult/Contents/Size")
      object.num_bytes = parse_integer(text).value_or(-1);
    if (path == "ListBucketResult/Contents") {
      has_sizes = has_sizes && object.num_bytes >= 0 && !object.path.empty();
      page.objects.push_back(std::exchange(object, {}));
    }
    if (path == "ListBucketResult/EncodingType") is_encoded = text == "url";
    if (path == "ListBucketResult/IsTruncated") has_more = text == "true";
    if (path == "ListBucketResult/NextContinuationToken") page.next_token = text;
    if (path == "ListBucketResult") has_root = true;
  });
  if (!walk.parse(xml) || !has_root || !has_sizes || (has_more && page.next_token.empty()))
    throw Error(ExitCode::kIo, "remote",
                place +
                    ": the store's answer is no listing (ListObjectsV2); is its address one of "
                    "the S3 interface?");
  if (!has_more) page.next_token.clear();
  // Decoded at the end, since EncodingType may follow the keys.
  for (files::FileFacts& found : page.objects)
    if (is_encoded) found.path = decoded(std::move(found.path));
  return page;
}

StoreFault parse_fault(std::string_view xml) {
  StoreFault fault;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    if (path == "Error/Code") fault.code = text;
    if (path == "Error/Message") fault.message = text;
  });
  return walk.parse(xml) ? fault : StoreFault{};
}

}  // namespace lockstep::remote
