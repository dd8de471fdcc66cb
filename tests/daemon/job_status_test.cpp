// Reports to a TrainJob during training. tests/integration/reports_test.py has those of a
// whole run, over TLS.
#include "daemon/run/run_hooks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <map>
#include <string_view>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "base/log.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace job_status_test {

/// The controller's side: answers one POST after the other.
class StatusServer {
 public:
  StatusServer() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    const timeval patience{.tv_sec = 8, .tv_usec = 0};
    EXPECT_EQ(::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
    EXPECT_EQ(::listen(socket_, 8), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "http://127.0.0.1:" + std::to_string(::ntohs(address.sin_port)) + "/status";
  }
  ~StatusServer() { ::close(socket_); }
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  const std::string& url() const { return url_; }

  /// Waits for a report, some seconds at most, and gives its body's only member.
  nlohmann::json next() const {
    const int client = ::accept(socket_, nullptr, nullptr);
    std::string text;
    for (size_t head = text.npos;;) {
      std::array<char, 4096> bytes{};
      const ssize_t count = ::read(client, bytes.data(), bytes.size());
      if (count <= 0) break;
      text.append(bytes.data(), static_cast<size_t>(count));
      if (head == text.npos) head = text.find("\r\n\r\n");
      const size_t length = text.find("Content-Length: ");
      if (head != text.npos && length != text.npos &&
          text.size() >= head + 4 + std::stoul(text.substr(length + 16)))
        break;
    }
    constexpr std::string_view kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    EXPECT_EQ(::write(client, kAnswer.data(), kAnswer.size()),
              static_cast<ssize_t>(kAnswer.size()));
    ::close(client);
    return nlohmann::json::parse(text.substr(text.find("\r\n\r\n")))["trainerStatus"];
  }

 private:
  const int socket_;
  std::string url_;
};

void do_step(train::Hook* hook, int64_t step) {
  train::StepReport report;
  report.step = step;
  report.loss = 0.5;
  hook->after_step({.step = step, .report = &report});
}

TEST(JobStatus, IsReportedAgainAndAgainWhileTrainingGoesOn) {
  const tests::TemporaryFolder folder;
  const StatusServer server;
  files::write_atomically(folder.path() / "token", "secret\n");
  const std::map<std::string, std::string> variables = {
      {"KUBEFLOW_TRAINER_SERVER_URL", server.url()},
      {"KUBEFLOW_TRAINER_SERVER_CA_CERT", "none"},
      {"KUBEFLOW_TRAINER_SERVER_TOKEN", (folder.path() / "token").string()}};
  const auto hook = job_status_hook(
      200, [&](const char* name) { return variables.at(name).c_str(); },
      std::chrono::milliseconds(20));
  do_step(hook.get(), 20);
  EXPECT_EQ(server.next()["progressPercentage"], 10);
  do_step(hook.get(), 100);
  nlohmann::json told = server.next();
  while (told["progressPercentage"] == 10) told = server.next();  // one may have been under way
  EXPECT_EQ(told["progressPercentage"], 50);
  EXPECT_GE(told["estimatedRemainingSeconds"], 0);
  EXPECT_EQ(told["metrics"][1], nlohmann::json({{"name", "loss"}, {"value", "0.5"}}));
  do_step(hook.get(), 1234567);
  while (told["metrics"][3]["value"] == "100") told = server.next();
  EXPECT_EQ(told["metrics"][3], nlohmann::json({{"name", "step"}, {"value", "1234567"}}));
  do_step(hook.get(), 200);
  nlohmann::json last;
  std::jthread controller([&](const std::stop_token& stopped) {
    while (!stopped.stop_requested() && last != 100) last = server.next()["progressPercentage"];
  });
  hook->end();
  controller.join();
  EXPECT_EQ(last, 100);
}

TEST(JobStatus, NobodyAsksForItWithoutTheVariables) {
  EXPECT_EQ(job_status_hook(200, [](const char*) -> const char* { return nullptr; }), nullptr);
  const int64_t before = log::num_lines(log::Level::kWarning);
  EXPECT_EQ(job_status_hook(200,
                            [](const char* name) -> const char* {
                              return std::string_view(name).ends_with("_URL") ? "http://x"
                                                                              : nullptr;
                            }),
            nullptr);
  EXPECT_EQ(log::num_lines(log::Level::kWarning), before + 1) << "one of the three alone";
}

}  // namespace job_status_test
}  // namespace lockstep::daemon
