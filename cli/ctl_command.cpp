#include "cli/ctl_command.h"

#include <chrono>
#include <memory>
#include <thread>

#include <curl/curl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/files/project.h"
#include "cli/command_line.h"
#include "job_server/job_queue.h"
#include "metrics/http/listen_address.h"

namespace lockstep::cli {
namespace {

constexpr int64_t kMaxTargetsBytes = 1 << 20;
constexpr int64_t kMaxTokenBytes = 4096;
constexpr size_t kMaxAnswerBytes = 1 << 20;
constexpr long kAnswerTimeout_s = 10;
constexpr std::chrono::milliseconds kAskAgain{100};
const std::string kUnixPrefix = "unix:";

/// Answer of the run, or the reason why there is none.
struct Answer {
  long status = 0;  ///< 0: no answer
  std::string body;
  std::string fault;
};

/// Write callback of curl; a return value below the size aborts the transfer.
size_t take(const char* bytes, size_t size, size_t count, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (text.size() + size * count > kMaxAnswerBytes) return 0;
  text.append(bytes, size * count);
  return size * count;
}

/// Address of rank 0 of a running job, and its credentials.
struct Service {
  std::string origin;                                ///< "http://127.0.0.1:9464"
  std::string socket_path;                           ///< used instead of TCP; empty: none
  std::shared_ptr<metrics::SocketName> socket_name;  ///< of that path
  std::string token_file, ca_file;
  std::filesystem::path folder;  ///< of the requested run; empty: any run at that address

  std::string shown() const { return socket_path.empty() ? origin : kUnixPrefix + socket_path; }
};

/// Returns the header with the token; the file may end with a newline.
std::string authorization(const std::string& token_file) {
  const std::string token = files::read(token_file, kMaxTokenBytes);
  return fmt::format("Authorization: Bearer {}",
                     token.substr(0, token.find_last_not_of(" \t\r\n") + 1));
}

Answer call(const Service& service, const std::string& target, bool is_post) {
  const std::unique_ptr<CURL, decltype(&curl_easy_cleanup)> curl(curl_easy_init(),
                                                                 curl_easy_cleanup);
  check(curl != nullptr, "curl starts");
  curl_slist* lines = curl_slist_append(nullptr, "X-Lockstep-Control: 1");
  if (!service.token_file.empty())
    lines = curl_slist_append(lines, authorization(service.token_file).c_str());
  const std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(lines,
                                                                            curl_slist_free_all);
  Answer answer;
  curl_easy_setopt(curl.get(), CURLOPT_URL, (service.origin + target).c_str());
  if (!service.ca_file.empty())
    curl_easy_setopt(curl.get(), CURLOPT_CAINFO, service.ca_file.c_str());
  if (!service.socket_path.empty())
    curl_easy_setopt(curl.get(), CURLOPT_UNIX_SOCKET_PATH, service.socket_name->text().c_str());
  // A proxy of the environment must not see the token, and cannot reach this host's socket.
  curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "*");
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT, kAnswerTimeout_s);
  curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, take);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer.body);
  if (is_post) curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, "");
  const CURLcode code = curl_easy_perform(curl.get());
  curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &answer.status);
  if (code != CURLE_OK) {
    answer.status = 0;
    answer.fault = curl_easy_strerror(code);
  }
  return answer;
}

/// Returns rank 0's address from targets.json, which exists while the run lives.
std::string address_in(const std::filesystem::path& project_dir) {
  const std::filesystem::path path = Project(project_dir).targets();
  if (!files::exists(path))
    throw Error(
        ExitCode::kInputMissing, "ctl",
        fmt::format("no job runs in this folder: no process listens at {}, and {} does not exist",
                    Project(project_dir).control_socket().string(), path.string()));
  try {
    for (const auto& target : nlohmann::json::parse(files::read(path, kMaxTargetsBytes)))
      if (target.at("labels").value("rank", "0") == "0")  // merged pages have no label `rank`
        return target.at("labels").value("__scheme__", "http") + "://" +
               target.at("targets").at(0).get<std::string>();
  } catch (const nlohmann::json::exception& fault) {
    throw Error(ExitCode::kBadData, "ctl", fmt::format("{}: {}", path.string(), fault.what()));
  }
  throw Error(ExitCode::kBadData, "ctl", fmt::format("{} names no rank 0", path.string()));
}

void set_socket(const std::filesystem::path& path, Service* service) {
  service->origin = "http://localhost";
  service->socket_path = path.string();
  service->socket_name = std::make_shared<metrics::SocketName>(path);
}

/// Refuses a run that was killed: another process may have its port and must not receive its token.
void require_no_dead_holder(const std::filesystem::path& folder) {
  if (!files::exists(folder / ".lock")) return;
  const auto holder = job_server::holder_of(folder);
  // A holder on another host cannot be checked; assume that it is alive.
  if (holder && (!holder->can_be_asked() || holder->is_alive())) return;
  throw Error(ExitCode::kInputMissing, "ctl",
              fmt::format("no job runs in {}: {}; run the same command again to continue it",
                          folder.string(),
                          holder ? fmt::format("it was killed ({})", holder->shown())
                                 : "its lock names no process"));
}

/// A socket without a listener was left by a killed run. Then the address is in targets.json.
void find_in_folder(const std::filesystem::path& folder, Service* service) {
  const std::filesystem::path socket = Project(folder).control_socket();
  if (metrics::is_listened_at(socket)) return set_socket(socket, service);
  service->origin = address_in(folder);
  service->folder = folder;
  require_no_dead_holder(folder);
}

void find_by_run_file(const std::string& file, Service* service) {
  const auto run = with_tensors<ControlOfRun>([&](auto) { return read_control(file); });
  // A socket file without a listener still gives the better error message.
  if (metrics::is_listened_at(run.socket) || (!run.is_on_pages && files::exists(run.socket)))
    set_socket(run.socket, service);
  else  // the run is on another host, or its command line sets another path
    find_in_folder(run.folder, service);
  if (service->token_file.empty()) service->token_file = run.token_file;
}

void require_run_file(const std::string& where) {
  if (files::exists(where)) return;
  const std::string hint =
      where.find("://") == std::string::npos && metrics::parse_listen_address(where)
          ? " (did you mean 'http://" + where + "'?)"
          : "";
  throw Error(ExitCode::kInputMissing, "ctl",
              fmt::format("{} does not exist{}: name the run file, the run's folder "
                          "(run.project_dir), http://HOST:PORT or unix:PATH",
                          where, hint));
}

/// Interprets WHERE: a socket, an address, a folder or a run file.
Service service_of(const CtlOptions& options) {
  const std::string& where = options.where;
  Service service{.token_file = options.token_file, .ca_file = options.ca_file};
  if (where.starts_with(kUnixPrefix)) {
    set_socket(where.substr(kUnixPrefix.size()), &service);
  } else if (where.starts_with("http://") || where.starts_with("https://")) {
    service.origin = where.substr(0, where.find_last_not_of('/') + 1);
  } else if (files::is_folder(where)) {
    find_in_folder(where, &service);
  } else {
    require_run_file(where);
    find_by_run_file(where, &service);
  }
  return service;
}

/// Returns a text in a JSON object; empty if it has none.
std::string text_in(const std::string& body, const char* key) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json.value(key, std::string()) : std::string();
}

/// Advice for a run that does not answer.
std::string what_to_do(const Service& service) {
  if (!service.socket_path.empty())
    return "no job runs there, or it runs on another host: a Unix socket works only on rank 0's "
           "host, for the run's user";
  if (!service.folder.empty())
    return fmt::format(
        "the run was killed, or this host cannot reach the host of rank 0, which wrote that "
        "address to {}",
        Project(service.folder).targets().string());
  return "no job runs there, or it has another address: name the run's folder or run file instead, "
         "or find [metrics] in its log";
}

/// Calls the API and turns every failure into an Error.
Answer require(const Service& service, const std::string& target, bool is_post) {
  Answer answer = call(service, target, is_post);
  if (answer.status == 0)
    throw Error(ExitCode::kUnavailable, "ctl",
                fmt::format("{} does not answer: {}; {}", service.shown(), answer.fault,
                            what_to_do(service)));
  if (answer.status == 404 && !is_post)
    throw Error(
        ExitCode::kUsage, "ctl",
        fmt::format(
            "{} accepts no calls: use the Unix socket in the run's folder, as the run's user on "
            "rank 0's host, or set control.listen: pages and metrics.token_file for the run",
            service.shown()));
  if (answer.status == 401)
    throw Error(
        ExitCode::kUsage, "ctl",
        fmt::format("{} needs a token: name its run file, or --token-file", service.shown()));
  if (answer.status < 300) return answer;
  const std::string error = text_in(answer.body, "error");
  throw Error(answer.status >= 500 ? ExitCode::kUnavailable : ExitCode::kUsage, "ctl",
              error.empty() ? fmt::format("{}: {}", answer.status, answer.body) : error);
}

/// True unless another run now has the port of the requested one.
bool is_asked_for(const Service& service, const std::string& status) {
  std::error_code fault;
  return service.folder.empty() ||
         std::filesystem::equivalent(service.folder, text_in(status, "project_dir"), fault);
}

/// Returns the status of the requested run. Throws Error if another run answers.
std::string require_status(const Service& service) {
  std::string status = require(service, "/control/status", false).body;
  if (!is_asked_for(service, status))
    throw Error(
        ExitCode::kInputMissing, "ctl",
        fmt::format("no job runs in {}: another run ({}) listens at its port now; if that is the "
                    "same folder under another name, use {} instead",
                    service.folder.string(), text_in(status, "project_dir"), service.shown()));
  return status;
}

/// Waits until no process answers at that address, or another run does.
void wait_for_end(const Service& service, double timeout_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  // An HTTP error is still an answer, so the run may be alive.
  const auto is_there = [&] {
    const Answer answer = call(service, "/control/status", false);
    return answer.status != 0 && (answer.status >= 300 || is_asked_for(service, answer.body));
  };
  while (is_there()) {
    if (std::chrono::steady_clock::now() > end)
      throw Error(ExitCode::kUnavailable, "ctl",
                  fmt::format("the run has not ended within {} s", timeout_s));
    std::this_thread::sleep_for(kAskAgain);
  }
}

}  // namespace

daemon::CommandResult ctl_command(const CtlOptions& options) {
  const bool sets = options.verb == "set", kills = options.verb == "kill-rank";
  if ((sets || kills) == options.value.empty())
    throw Error(ExitCode::kUsage, "ctl",
                sets ? "set takes KEY=VALUE, such as log.level=debug"
                : kills
                    ? "kill-rank takes the number of a rank, such as 1"
                    : fmt::format("{} takes no arguments, not '{}'", options.verb, options.value));
  const Service service = service_of(options);
  const std::string status = require_status(service);
  if (options.verb == "status") return {status, 0};
  const std::string route = options.verb == "drain" ? "stop" : options.verb;
  const std::string query = kills ? "?rank=" + options.value : sets ? "?" + options.value : "";
  const Answer answer = require(service, fmt::format("/control/{}{}", route, query), true);
  if (options.verb == "drain") wait_for_end(service, options.timeout_s);
  return {answer.body, 0};
}

}  // namespace lockstep::cli
