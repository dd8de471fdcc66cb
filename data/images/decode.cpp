#include "data/images/decode.h"

#include <csetjmp>
#include <cstdio>
#include <cstring>

#include <jpeglib.h>
// after jpeglib.h, which it needs
#include <jerror.h>

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

namespace {

/// Error state of libjpeg. Both libraries end errors by longjmp: no destructors on the way.
struct JpegFault {
  jpeg_error_mgr manager;  // first: libjpeg sees only this member
  std::jmp_buf end;
  char text[JMSG_LENGTH_MAX];
};

/// Error handler: stores the message and jumps back to the reader.
[[noreturn]] void end_decoding(j_common_ptr codec) {
  auto* fault = reinterpret_cast<JpegFault*>(codec->err);
  fault->manager.format_message(codec, fault->text);
  std::longjmp(fault->end, 1);
}

/// Treats warnings about lost pixels as errors. Others (stray bytes between parts) are common in
/// intact collections.
void judge_message(j_common_ptr codec, int level) {
  const int code = codec->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE))
    end_decoding(codec);
}

/// Decoder of the rows after jpeg_start_decompress(). Functions return false after an error.
class JpegReader {
 public:
  JpegReader(std::string_view file, int64_t channels, int denominator) {
    codec_.err = jpeg_std_error(&fault_.manager);
    fault_.manager.error_exit = end_decoding;
    fault_.manager.emit_message = judge_message;
    begun_ = begin(file, channels, denominator);
  }
  ~JpegReader() { jpeg_destroy_decompress(&codec_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  bool begun() const { return begun_; }
  const jpeg_decompress_struct& codec() const { return codec_; }
  std::string fault() const { return fault_.text; }

  bool read_rows(uint8_t* pixels) {
    // Each caller of libjpeg needs its own setjmp: the frame must still exist at longjmp.
    if (setjmp(fault_.end) != 0) return false;
    const size_t row_bytes =
        size_t{codec_.output_width} * static_cast<size_t>(codec_.output_components);
    while (codec_.output_scanline < codec_.output_height) {
      JSAMPROW rows[4];
      for (size_t i = 0; i < 4; ++i)
        rows[i] = pixels + (codec_.output_scanline + i) * row_bytes;  // not written past the end
      jpeg_read_scanlines(&codec_, rows, 4);
    }
    jpeg_finish_decompress(&codec_);
    return true;
  }

 private:
  bool begin(std::string_view file, int64_t channels, int denominator) {
    if (setjmp(fault_.end) != 0) return false;
    jpeg_create_decompress(&codec_);
    jpeg_mem_src(&codec_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&codec_, TRUE);
    const bool has_key = codec_.jpeg_color_space == JCS_CMYK || codec_.jpeg_color_space == JCS_YCCK;
    codec_.out_color_space = has_key ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    codec_.scale_num = 1;
    codec_.scale_denom = static_cast<unsigned>(denominator);
    jpeg_start_decompress(&codec_);
    return true;
  }

  jpeg_decompress_struct codec_{};
  JpegFault fault_{};
  bool begun_ = false;
};

/// Returns a * b / 255, rounded.
uint8_t product_of_parts(unsigned a, unsigned b) {
  return static_cast<uint8_t>((a * b + 127) / 255);
}

/// Converts in place. Adobe's files store the white that remains, others the ink.
void rgb_of_cmyk(uint8_t* pixels, size_t num_pixels, bool is_inverted) {
  for (size_t i = 0; i < num_pixels; ++i) {
    const uint8_t* from = pixels + 4 * i;
    const unsigned ink = is_inverted ? 0 : 255, key = ink ^ from[3];
    for (size_t c = 0; c < 3; ++c) pixels[3 * i + c] = product_of_parts(ink ^ from[c], key);
  }
}

/// Decoder of PNG.
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

Pixels decode_jpeg(std::string_view file, int64_t channels, int denominator,
                   std::vector<uint8_t>* storage) {
  JpegReader reader(file, channels, denominator);
  if (!reader.begun()) refuse_image(reader.fault());
  const jpeg_decompress_struct& codec = reader.codec();
  const size_t num_pixels = size_t{codec.output_width} * codec.output_height;
  const auto components = static_cast<size_t>(codec.output_components);
  // Resized between the two setjmp frames: a vector must not be resized on a longjmp path.
  storage->resize(num_pixels * components);
  if (!reader.read_rows(storage->data())) refuse_image(reader.fault());
  if (components == 4) {
    rgb_of_cmyk(storage->data(), num_pixels, codec.saw_Adobe_marker != 0);
    if (channels == 1) grey_of_rgb(storage->data(), num_pixels);
  }
  return {storage->data(), codec.output_height, codec.output_width, channels, true};
}

static Pixels decode_png(std::string_view file, int64_t channels, std::vector<uint8_t>* storage) {
  PngReader reader(file);
  if (!reader.begin(channels)) refuse_image(reader.fault());
  storage->resize(reader.height() * reader.row_bytes());
  if (!reader.read_rows(storage->data())) refuse_image(reader.fault());
  if (reader.becomes_grey()) grey_of_rgb(storage->data(), reader.height() * reader.width());
  return {storage->data(), static_cast<int64_t>(reader.height()),
          static_cast<int64_t>(reader.width()), channels, true};
}

Pixels decode_image(std::string_view file, const ImageHeader& header, int64_t channels,
                    int denominator, std::vector<uint8_t>* storage) {
  return header.format == ImageFormat::kPng ? decode_png(file, channels, storage)
                                            : decode_jpeg(file, channels, denominator, storage);
}

}  // namespace lockstep::data
