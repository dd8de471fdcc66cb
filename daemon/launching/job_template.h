#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/config/command_result.h"

// Templates of launch/slurm and launch/kubernetes, put into the program by job_templates.S
extern "C" const char lockstep_slurm_job[], lockstep_mpijob[], lockstep_jobset[],
    lockstep_trainjob[];

namespace lockstep::daemon {

/// Text of a template, and what replaces it.
using TemplateValues = std::vector<std::pair<std::string, std::string>>;

/// Returns the template with every occurrence of each text replaced. If several texts match at one
/// place, the first of `values` counts; replacements are not searched again. Throws Error(kBug) if
/// the template does not contain one of the texts.
std::string filled(std::string_view job_template, const TemplateValues& values);

/// Returns the job itself if out_file is empty. Otherwise writes it there and returns the command
/// that starts it: `start` and the path.
CommandResult job_result(const std::string& job, const std::string& out_file,
                         const std::string& start);

}  // namespace lockstep::daemon
