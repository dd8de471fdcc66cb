#pragma once

#include <string>

#include "remote/credentials.h"

/// Keys that a cloud gives to its own pods, tasks and machines. They expire, so they are asked for
/// again. Each function asks the cloud's service on every call.
namespace lockstep::remote {

/// Returns the key of a role on Amazon's cloud, the first of these; empty if there is none.
/// * AWS_CONTAINER_CREDENTIALS_FULL_URI, or _RELATIVE_URI: a container's (ECS, EKS Pod Identity),
///   with AWS_CONTAINER_AUTHORIZATION_TOKEN or the text of the file ..._TOKEN_FILE.
/// * AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN: a Kubernetes service account's (IRSA), from
///   AWS_ENDPOINT_URL_STS or the region's own STS.
/// * The machine's (EC2, IMDSv2), unless AWS_EC2_METADATA_DISABLED is true.
///   AWS_EC2_METADATA_SERVICE_ENDPOINT replaces its address.
///
/// Throws Error(kConfig) if the first two are set and give no key.
Credentials amazon_role_key(const std::string& region);

/// Returns a bearer token of the service account of a machine on Google's cloud; empty if it has
/// none. GCE_METADATA_HOST replaces the host of the service.
Credentials google_account_key();

}  // namespace lockstep::remote
