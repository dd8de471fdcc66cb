#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Appends `data` framed as a TFRecord. The frame has its length (8 bytes, little endian), the
/// masked crc32c of these bytes, the data, and its masked crc32c. tf.data.TFRecordDataset reads
/// such files. TensorBoard does if the data are Event messages.
///
///     std::string records;
///     for (const std::string& message : messages) append_tf_record(message, &records);
///     writer.append(records);
///
/// Source: tensorflow/core/lib/io/record_writer.h.
void append_tf_record(std::string_view data, std::string* records);

}  // namespace lockstep
