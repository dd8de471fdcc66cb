#include "metrics/http/tls_stream.h"

#include <algorithm>
#include <map>
#include <string>

#include <fmt/format.h>
#include <openssl/x509v3.h>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/verify_context.hpp>

#include "base/error.h"
#include "base/log.h"

// OpenSSL through Asio. The client checks follow Prometheus' exporter-toolkit: client_auth_type,
// client_ca_file and client_allowed_sans.
namespace lockstep::metrics {
namespace {

namespace ssl = boost::asio::ssl;
using boost::asio::ip::make_address_v4;
using boost::asio::ip::make_address_v6;

const std::map<std::string, int> kVersionNumbers = {{"TLS10", TLS1_VERSION},
                                                    {"TLS11", TLS1_1_VERSION},
                                                    {"TLS12", TLS1_2_VERSION},
                                                    {"TLS13", TLS1_3_VERSION}};

void require(const boost::system::error_code& fault, const char* key, const std::string& file) {
  if (fault)
    throw Error(ExitCode::kConfig, "metrics",
                fmt::format("tls_server_config: {}: {}: {}; it must be a readable PEM file; the "
                            "key must match the certificate and have no passphrase",
                            key, file, fault.message()));
}

/// Copies an address from its ASN.1 form.
template <class Bytes>
Bytes bytes_of(const ASN1_STRING* text) {
  Bytes bytes;
  std::copy_n(ASN1_STRING_get0_data(text), bytes.size(), bytes.begin());
  return bytes;
}

/// Returns a subject alternative name as text; empty for other kinds of names.
std::string text_of(const GENERAL_NAME* name) {
  int type = 0;
  const auto* text = static_cast<const ASN1_STRING*>(GENERAL_NAME_get0_value(name, &type));
  if (type == GEN_DNS || type == GEN_URI || type == GEN_EMAIL)
    return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
            static_cast<size_t>(ASN1_STRING_length(text))};
  if (type != GEN_IPADD) return "";
  if (ASN1_STRING_length(text) == 4)
    return make_address_v4(bytes_of<boost::asio::ip::address_v4::bytes_type>(text)).to_string();
  if (ASN1_STRING_length(text) == 16)
    return make_address_v6(bytes_of<boost::asio::ip::address_v6::bytes_type>(text)).to_string();
  return "";
}

/// True if one of the certificate's names, addresses and URIs is in the list.
bool is_for_one_of(X509* certificate, const std::vector<std::string>& allowed) {
  const std::unique_ptr<GENERAL_NAMES, decltype(&GENERAL_NAMES_free)> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)),
      &GENERAL_NAMES_free);
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const std::string name = text_of(sk_GENERAL_NAME_value(names.get(), i));
    if (!name.empty() && std::find(allowed.begin(), allowed.end(), name) != allowed.end())
      return true;
  }
  return false;
}

/// Sets which certificates clients must show, and how they are checked.
void set_up_clients(const TlsOptions& options, ssl::context* context) {
  const std::string& type = options.client_auth_type;
  if (type == "NoClientCert") return;
  const bool is_needed = type.starts_with("Require");
  context->set_verify_mode(ssl::verify_peer |
                           (is_needed ? ssl::verify_fail_if_no_peer_cert : ssl::verify_none));
  const bool is_verified = !options.client_ca_file.empty();
  if (is_verified) {
    boost::system::error_code fault;
    context->load_verify_file(options.client_ca_file, fault);
    require(fault, "client_ca_file", options.client_ca_file);
  }
  // Called for each certificate of the chain. Depth 0 is the client's own; only its names matter.
  context->set_verify_callback([is_verified, allowed = options.client_allowed_sans](
                                   bool is_trusted, ssl::verify_context& chain) {
    if (!is_verified) return true;
    X509_STORE_CTX* store = chain.native_handle();
    const bool is_the_clients_own = X509_STORE_CTX_get_error_depth(store) == 0;
    if (!is_trusted || !is_the_clients_own || allowed.empty()) return is_trusted;
    return is_for_one_of(X509_STORE_CTX_get_current_cert(store), allowed);
  });
}

}  // namespace

ssl::context make_tls_context(const TlsOptions& options) {
  ssl::context context(ssl::context::tls_server);
  SSL_CTX* const native = context.native_handle();
  check(SSL_CTX_set_min_proto_version(native, kVersionNumbers.at(options.min_version)) == 1 &&
            SSL_CTX_set_max_proto_version(native, kVersionNumbers.at(options.max_version)) == 1,
        "OpenSSL knows these versions");
  // Every connection is verified again: no session state of clients is kept.
  SSL_CTX_set_session_cache_mode(native, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_options(native, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  boost::system::error_code fault;
  context.use_certificate_chain_file(options.cert_file, fault);
  require(fault, "cert_file", options.cert_file);
  // An encrypted key must fail instead of asking on the terminal.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return ""; });
  context.use_private_key_file(options.key_file, ssl::context::pem, fault);
  require(fault, "key_file", options.key_file);
  set_up_clients(options, &context);
  return context;
}

RenewedTlsContext::RenewedTlsContext(TlsOptions options)
    : options_(std::move(options)),
      times_(times_of_files()),
      context_(std::make_shared<ssl::context>(make_tls_context(options_))) {}

std::vector<std::filesystem::file_time_type> RenewedTlsContext::times_of_files() const {
  std::vector<std::filesystem::file_time_type> times;
  for (const std::string* path :
       {&options_.cert_file, &options_.key_file, &options_.client_ca_file}) {
    std::error_code not_there;
    times.push_back(std::filesystem::last_write_time(*path, not_there));
  }
  return times;
}

std::shared_ptr<ssl::context> RenewedTlsContext::get() {
  std::vector<std::filesystem::file_time_type> times = times_of_files();
  // Only a changed modification time leads to a new context, since this runs for each connection.
  if (times == times_) return context_;
  // Set before reading, so that a broken file is reported once and not at each connection.
  times_ = std::move(times);
  try {
    context_ = std::make_shared<ssl::context>(make_tls_context(options_));
    log::info("metrics", fmt::format("{} was reloaded", options_.cert_file));
  } catch (const Error& fault) {
    log::warning("metrics", fmt::format("keeping the previous certificate: {}", fault.what()));
  }
  return context_;
}

// The only places where plain and TLS connections differ.

ByteStream::ByteStream(TimedSocket socket, std::shared_ptr<boost::asio::ssl::context> tls)
    : context_(std::move(tls)), socket_(std::make_unique<TimedSocket>(std::move(socket))) {
  if (context_ != nullptr)
    tls_ = std::make_unique<boost::beast::ssl_stream<TimedSocket&>>(*socket_, *context_);
}

void ByteStream::async_handshake(std::function<void(error_code)> done) {
  tls_->async_handshake(boost::asio::ssl::stream_base::server, std::move(done));
}

void ByteStream::async_shutdown(std::function<void(error_code)> done) {
  tls_->async_shutdown(std::move(done));
}

void ByteStream::read_some(boost::asio::mutable_buffer buffer, Done done) {
  if (tls_ != nullptr)
    tls_->async_read_some(buffer, std::move(done));
  else
    socket_->async_read_some(buffer, std::move(done));
}

void ByteStream::write_some(const Buffers& buffers, Done done) {
  if (tls_ != nullptr)
    tls_->async_write_some(buffers, std::move(done));
  else
    socket_->async_write_some(buffers, std::move(done));
}

}  // namespace lockstep::metrics
