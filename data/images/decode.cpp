#include "data/images/decode.h"

#include <csetjmp>
#include <cstring>

#include <fmt/format.h>
#include <png.h>

#include "base/error.h"

namespace lockstep::data {
namespace {

constexpr std::string_view kPngMagic("\x89PNG\r\n\x1a\n", 8);
// Start of image, and the start of the next marker.
constexpr std::string_view kJpegMagic("\xff\xd8\xff", 3);
constexpr int64_t kMaxImagePixels = int64_t{1} << 28;
// Neither format packs more: PNG's deflate reaches 1,032 bytes per byte, JPEG 64 pixels per bit.
constexpr int64_t kMaxPixelsPerByte = 1100;

/// Reads a big-endian number.
int64_t number_at(std::string_view bytes, size_t at, size_t num_bytes) {
  int64_t value = 0;
  for (size_t i = 0; i < num_bytes; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

/// Reads the size from the first chunk, which must be IHDR.
ImageHeader png_header(std::string_view file) {
  if (file.size() < 33 || file.substr(12, 4) != "IHDR") refuse_image("is truncated in its header");
  return {ImageFormat::kPng, number_at(file, 20, 4), number_at(file, 16, 4)};
}

/// True if a marker starts a frame, which has the sizes: SOF0 to SOF15 without DHT, JPG, DAC.
bool begins_frame(uint8_t marker) {
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

/// Reads a JPEG's size. Stray bytes between segments are skipped, as in libjpeg, because they occur
/// in intact collections.
ImageHeader jpeg_header(std::string_view file) {
  size_t at = 2;
  while (at + 9 <= file.size()) {
    const auto marker = static_cast<uint8_t>(file[at + 1]);
    const bool is_marker = static_cast<uint8_t>(file[at]) == 0xff && marker != 0xff && marker != 0;
    if (!is_marker) {
      ++at;
      continue;
    }
    if (begins_frame(marker))
      return {ImageFormat::kJpeg, number_at(file, at + 5, 2), number_at(file, at + 7, 2)};
    // TEM, RST0 to RST7 and SOI have no length.
    const bool stands_alone = marker == 0x01 || (marker >= 0xd0 && marker <= 0xd8);
    at += 2 + (stands_alone ? 0 : static_cast<size_t>(number_at(file, at + 2, 2)));
  }
  refuse_image("is truncated before its size");
}

}  // namespace

void grey_of_rgb(uint8_t* pixels, size_t num_pixels) {
  for (size_t i = 0; i < num_pixels; ++i)
    pixels[i] = luma_of(pixels[3 * i], pixels[3 * i + 1], pixels[3 * i + 2]);
}

void refuse_image(const std::string& what) { throw Error(ExitCode::kBadData, "data", what); }

ImageHeader read_image_header(std::string_view file) {
  const bool is_png = file.starts_with(kPngMagic);
  if (!is_png && !file.starts_with(kJpegMagic)) refuse_image("is neither JPEG nor PNG");
  const ImageHeader header = is_png ? png_header(file) : jpeg_header(file);
  if (header.height == 0 || header.width == 0) refuse_image("has no pixels");
  // Both are below 2^32. The product of two that are not too large is below 2^63.
  const bool is_large = header.height > kMaxImagePixels || header.width > kMaxImagePixels ||
                        header.height * header.width > kMaxImagePixels;
  if (is_large ||
      header.height * header.width > kMaxPixelsPerByte * static_cast<int64_t>(file.size()))
    refuse_image(fmt::format("has {} x {} pixels in its header, more than {}", header.width,
                             header.height,
                             is_large ? "the supported 268,435,456"
                                      : fmt::format("its {} bytes can encode", file.size())));
  return header;
}

Pixels decode_image(std::string_view file, const ImageHeader& header, int64_t channels,
                    int denominator, std::vector<uint8_t>* storage) {
  return header.format == ImageFormat::kPng ? decode_png(file, channels, storage)
                                            : decode_jpeg(file, channels, denominator, storage);
}

namespace {

/// Decoder. libpng's errors end in longjmp, so functions on the way must have no destructors.
class PngReader {
 public:
  explicit PngReader(std::string_view file) : rest_(file) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, end_decoding, ignore_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Reads up to the pixels. Returns false after an error.
  bool begin(int64_t channels) {
    if (info_ == nullptr) return false;
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_read_fn(png_, this, take_bytes);
    png_read_info(png_, info_);
    png_set_expand(png_);  // palettes, fewer than 8 bits
    png_set_scale_16(png_);
    png_set_strip_alpha(png_);
    const bool is_grey = (png_get_color_type(png_, info_) & PNG_COLOR_MASK_COLOR) == 0;
    if (is_grey && channels == 3) png_set_gray_to_rgb(png_);
    num_passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    // libpng's own conversion to grey uses the file's gamma; other programs do not.
    becomes_grey_ = !is_grey && channels == 1;
    return true;
  }
  bool becomes_grey() const { return becomes_grey_; }
  size_t height() const { return png_get_image_height(png_, info_); }
  size_t width() const { return png_get_image_width(png_, info_); }
  size_t row_bytes() const { return png_get_rowbytes(png_, info_); }

  bool read_rows(uint8_t* pixels) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    // Interlaced images need several passes over all rows.
    for (int pass = 0; pass < num_passes_; ++pass)
      for (size_t row = 0; row < height(); ++row)
        png_read_row(png_, pixels + row * row_bytes(), nullptr);
    png_read_end(png_, nullptr);
    return true;
  }
  std::string fault() const { return fault_; }

 private:
  [[noreturn]] static void end_decoding(png_structp png, png_const_charp text) {
    auto* self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::strncpy(self->fault_, text, sizeof self->fault_ - 1);
    png_longjmp(png, 1);
  }
  static void ignore_warning(png_structp /*png*/, png_const_charp /*text*/) {}
  static void take_bytes(png_structp png, png_bytep bytes, size_t num_bytes) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (num_bytes > self->rest_.size()) png_error(png, "is truncated");
    std::memcpy(bytes, self->rest_.data(), num_bytes);
    self->rest_.remove_prefix(num_bytes);
  }

  std::string_view rest_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int num_passes_ = 1;
  bool becomes_grey_ = false;
  char fault_[160] = "out of memory";
};

}  // namespace

Pixels decode_png(std::string_view file, int64_t channels, std::vector<uint8_t>* storage) {
  PngReader reader(file);
  if (!reader.begin(channels)) refuse_image(reader.fault());
  storage->resize(reader.height() * reader.row_bytes());
  if (!reader.read_rows(storage->data())) refuse_image(reader.fault());
  if (reader.becomes_grey()) grey_of_rgb(storage->data(), reader.height() * reader.width());
  return {storage->data(), static_cast<int64_t>(reader.height()),
          static_cast<int64_t>(reader.width()), channels, true};
}

}  // namespace lockstep::data
