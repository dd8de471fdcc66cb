#include "checkpoint/rank_faults.h"

#include <vector>

#include <fmt/format.h>

#include "checkpoint/proto/shard_report.pb.h"
#include "dist/agree.h"

namespace lockstep::checkpoint {

std::string plain_text(const Error& fault) {
  const std::string text = fault.what();
  const size_t end = text.find("] ");
  return text.starts_with('[') && end != std::string::npos ? text.substr(end + 2) : text;
}

std::optional<Error> shared_fault(dist::Communicator& control, const std::optional<Error>& fault) {
  pb::FaultReport report;
  if (fault) {
    report.set_code(static_cast<int32_t>(fault->code()));
    report.set_text(plain_text(*fault));
  }
  const std::vector<std::string> texts = dist::gather_texts(control, report.SerializeAsString());
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    check(report.ParseFromString(texts[rank]), "a rank's fault report cannot be read");
    if (report.code() != 0)
      return Error(static_cast<ExitCode>(report.code()), "checkpoint",
                   texts.size() == 1 ? report.text()
                                     : fmt::format("rank {}: {}", rank, report.text()))
          .everywhere();
  }
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
