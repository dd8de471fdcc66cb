#pragma once

#include <string>

#include "daemon/config/command_result.h"
#include "daemon/launching/above_file.h"
#include "daemon/launching/kubernetes_manifests.h"

namespace lockstep::daemon {

/// The command line of `lockstep launch kubernetes`.
struct KubernetesCommandOptions {
  std::string config_file;
  AboveFile above;       ///< an estimator's path is that of the image, and is opened here too
  std::string out_file;  ///< empty: the manifests are the command's text
  KubernetesJob job;     ///< files and arguments are filled in here
};

/// The manifests of launch/kubernetes for this run file, which is read first, so that faults in it
/// do not wait for pods. It and its recipe become files of the pods; what else it names must be in
/// the image or on a volume.
CommandResult kubernetes_command(const KubernetesCommandOptions& options);

}  // namespace lockstep::daemon
