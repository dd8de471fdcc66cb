// Every answer that the description promises is given, and no other: each call is made in every way
// that brings an answer of its own.
#include <cctype>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "daemon/config/overrides.h"
#include "daemon/control/control_api.h"
#include "metrics/exposition.h"
#include "metrics/http_client.h"
#include "support/temporary_folder.h"

extern "C" {
extern const char lockstep_openapi[];
}

namespace lockstep::daemon {
namespace answers_test {

using tests::Connection;

const std::string kDigits = LOCKSTEP_SOURCE_DIR "/configs/digits.yaml";
constexpr const char* kHash = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
constexpr const char* kWrongUser = "Authorization: Basic YWRhOlUqVg==\r\n";
constexpr const char* kHeader = "X-Lockstep-Control: 1\r\n";
constexpr int kNumTries = 6;  // one is looked at, one waits

class NoSignals final : public StopRequest {
 public:
  void set_stop_signals(const std::vector<int>& /*signals*/) override {}
  bool stop_asked() const override { return false; }
  bool end_asked() const override { return false; }
  int64_t num_saves_asked() const override { return 0; }
  int64_t num_received(int /*signal_number*/) const override { return 0; }
};

RunConfig config_with(const std::vector<std::string>& sets) {
  std::vector<Override> overrides;
  for (const std::string& text : sets) overrides.push_back(parse_set(text));
  Diagnostics faults;
  RunConfig config = load_run_config(kDigits, overrides, &faults);
  faults.throw_if_any("test");
  return config;
}

/// The pages of a run, with its control API or without.
class Pages {
 public:
  Pages(const std::vector<std::string>& sets, const metrics::AccessOptions& access,
        bool has_control = true)
      : config_(config_with(sets)), api_(config_, process(), requests_, health_) {
    metrics::HttpOptions options{.listen = {"127.0.0.1", 0}, .access = access};
    if (has_control) options.post = [this](std::string_view target) { return api_.post(target); };
    server_ = std::make_unique<metrics::HttpServer>(
        options,
        [this, has_control](std::string_view target) {
          return has_control && target.starts_with(kControlRoute) ? api_.get(target)
                                                                  : exposition_.handle(target);
        },
        nullptr);
  }
  uint16_t port() const { return server_->address().port; }
  /// A spare process is left where the run saves.
  dist::ProcessInfo process() const {
    const dist::Spares spares{.num_left = config_.checkpoint.enabled ? 1 : 0};
    return {.world_size = 2, .spares = spares};
  }

 private:
  const RunConfig config_;
  NoSignals signals_;
  Requests requests_{signals_};
  metrics::Health health_;
  const metrics::Exposition exposition_{
      {}, health_, {.metrics = [](metrics::PageFormat) { return ""; }, .live = [] { return ""; }}};
  ControlApi api_;
  std::unique_ptr<metrics::HttpServer> server_;
};

struct Answer {
  std::string status, content_type;
};

Answer answer_in(const std::string& text) {
  const std::string name = "Content-Type: ";
  const size_t at = text.find(name), length = text.find_first_of(";\r", at) - at;
  return {text.substr(9, 3), text.substr(at, length).substr(name.size())};
}

struct Call {
  std::string method, target;

  std::string text(const std::string& headers, const std::string& body = "",
                   const std::string& version = "1.1") const {
    return method + " " + target + " HTTP/" + version + "\r\nHost: localhost\r\n" + headers +
           "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }
};

Answer ask(const Pages& pages, const std::string& request) {
  Connection connection(pages.port());
  connection.send(request);
  return answer_in(connection.read_to_end());
}

/// Answers to some clients that try passwords at the same time.
std::vector<Answer> try_at_once(const Pages& pages, const std::string& request) {
  std::vector<std::unique_ptr<Connection>> all;
  for (int i = 0; i < kNumTries; ++i) {
    all.push_back(std::make_unique<Connection>(pages.port()));
    all.back()->send(request);
  }
  std::vector<Answer> answers;
  for (const auto& one : all) answers.push_back(answer_in(one->read_to_end()));
  return answers;
}

class ControlAnswers : public ::testing::Test {
 protected:
  std::string file(const char* name, const std::string& text) const {
    std::ofstream(folder.path() / name) << text << "\n";
    return (folder.path() / name).string();
  }

  /// Answers to the call in every variant; `target` has the query that the call needs.
  std::vector<Answer> all_answers(const Call& call) {
    const std::string path = call.target.substr(0, call.target.find('?'));
    std::vector<Answer> answers = try_at_once(guarded, call.text(kWrongUser));
    const Call unknown_key{call.method, path + "?no.key=1"};
    const Call needs_saves{call.method, path + "?checkpoint.save_checkpoints_steps=5"};
    for (const std::string& request :
         {call.text(kHeader), call.text(""), unknown_key.text(kHeader), call.text(kHeader, "", "7"),
          call.text(kHeader, std::string(70000, 'x')),
          call.text(kHeader + ("X: " + std::string(9000, 'x')) + "\r\n")})
      answers.push_back(ask(open, request));
    answers.push_back(ask(guarded, call.text(kHeader)));
    answers.push_back(ask(without_saves, needs_saves.text(kHeader)));
    answers.push_back(ask(without_saves, call.text(kHeader)));
    answers.push_back(ask(without_control, call.text(kHeader)));
    return answers;
  }

  const tests::TemporaryFolder folder;
  const std::string project = "run.project_dir='" + folder.path().string() + "/run'";
  const Pages open{{project}, {}};
  const Pages without_saves{{project, "checkpoint=off"}, {}};
  const Pages without_control{{project}, {}, /*has_control=*/false};
  const Pages guarded{
      {project},
      {.web_config = file("web.yml", std::string("basic_auth_users: {ada: \"") + kHash + "\"}"),
       .token_file = file("token", "0123456789abcdef0123456789abcdef")}};
  const nlohmann::json api = nlohmann::json::parse(std::string(lockstep_openapi));
};

/// Content types by status.
std::map<std::string, std::string> promised(const nlohmann::json& api,
                                            const nlohmann::json& operation) {
  std::map<std::string, std::string> types;
  for (const auto& [status, given] : operation["responses"].items()) {
    const nlohmann::json& response =
        given.contains("$ref")
            ? api[nlohmann::json::json_pointer(given["$ref"].get<std::string>().substr(1))]
            : given;
    types[status] = response["content"].items().begin().key();
  }
  return types;
}

TEST_F(ControlAnswers, AreThoseOfTheDescription) {
  int num_answers = 0;
  for (const auto& [path, operations] : api["paths"].items())
    for (const auto& [method, operation] : operations.items()) {
      const std::map<std::string, std::string> queries{{"/control/set", "?log.level=info"},
                                                       {"/control/kill-rank", "?rank=1"}};
      const auto query = queries.find(path);
      const Call call{method == "get" ? "GET" : "POST",
                      path + (query == queries.end() ? "" : query->second)};
      std::map<std::string, std::string> given;
      for (const Answer& answer : all_answers(call)) {
        given[answer.status] = answer.content_type;
        ++num_answers;
      }
      EXPECT_EQ(given, promised(api, operation)) << method << " " << path;
    }
  std::printf("%d answers compared with the description\n", num_answers);
}

/// Simulates a page in a browser whose name leads to the address of this host.
TEST_F(ControlAnswers, APostUnderAForeignNameIsRefused) {
  std::string request = Call{"POST", "/control/save"}.text(kHeader);
  EXPECT_EQ(ask(open, request).status, "202");
  const std::string own = "Host: localhost";
  request.replace(request.find(own), own.size(),
                  "Host: evil.example:" + std::to_string(open.port()));
  EXPECT_EQ(ask(open, request).status, "403");
}

TEST_F(ControlAnswers, AllElseIsRefused) {
  std::vector<std::string> paths{"/control/nothing", "/control/"};
  for (const auto& [path, operations] : api["paths"].items()) paths.push_back(path);
  for (const std::string& path : paths)
    for (const std::string method : {"get", "post", "put", "delete", "patch", "options"}) {
      if (api["paths"].contains(path) && api["paths"][path].contains(method)) continue;
      std::string verb = method;
      for (char& letter : verb) letter = static_cast<char>(std::toupper(letter));
      const std::string wanted = method == "get" || method == "post" ? "404" : "405";
      EXPECT_EQ(ask(open, Call{verb, path}.text(kHeader)).status, wanted) << verb << " " << path;
    }
}

}  // namespace answers_test
}  // namespace lockstep::daemon
