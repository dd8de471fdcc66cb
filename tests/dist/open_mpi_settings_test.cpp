#include "dist/mpi/world.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "dist/cpu/p2p_channel.h"

namespace lockstep::dist::mpi {
namespace open_mpi_settings_test {

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "unset" : value;
}

/// Each test begins without any of these variables, whatever started it.
class OpenMpiSettings : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"OMPI_MCA_btl_tcp_eager_limit", "OMPI_MCA_btl_tcp_max_send_size",
          "OMPI_MCA_ess_singleton_isolated", "OMPI_MCA_pml", "HWLOC_COMPONENTS",
          "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "PMI_RANK"})
      unsetenv(name);
  }

  static void expect_search_for_cards(bool is_wanted) {
    EXPECT_EQ(value_of("OMPI_MCA_pml"), is_wanted ? "unset" : "ob1");
    EXPECT_EQ(value_of("HWLOC_COMPONENTS"), is_wanted ? "unset" : "-linuxio,-pci");
  }
};

TEST_F(OpenMpiSettings, AProcessAloneNeedsNoCardAndNoDaemon) {
  prefer_open_mpi_settings();
  expect_search_for_cards(false);
  EXPECT_EQ(value_of("OMPI_MCA_ess_singleton_isolated"), "1");
}

TEST_F(OpenMpiSettings, APartOfATensorIsSentAtOnce) {
  prefer_open_mpi_settings();
  EXPECT_GT(std::stoll(value_of("OMPI_MCA_btl_tcp_eager_limit")), cpu::P2pChannel::kPartBytes);
  EXPECT_EQ(value_of("OMPI_MCA_btl_tcp_max_send_size"), value_of("OMPI_MCA_btl_tcp_eager_limit"));
}

TEST_F(OpenMpiSettings, AUsersLimitOfOneKindKeepsTheOtherAsOpenMpiHasIt) {
  setenv("OMPI_MCA_btl_tcp_max_send_size", "65536", 1);
  prefer_open_mpi_settings();
  EXPECT_EQ(value_of("OMPI_MCA_btl_tcp_max_send_size"), "65536");
  EXPECT_EQ(value_of("OMPI_MCA_btl_tcp_eager_limit"), "unset");
}

TEST_F(OpenMpiSettings, RanksOfOneHostNeedNoCard) {
  setenv("PMIX_NAMESPACE", "1", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
  prefer_open_mpi_settings();
  expect_search_for_cards(false);
}

TEST_F(OpenMpiSettings, RanksOfTwoHostsLookForCards) {
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
  prefer_open_mpi_settings();
  expect_search_for_cards(true);
}

TEST_F(OpenMpiSettings, WhereTheLauncherSaysNothingOfHostsTheyLookForCards) {
  for (const char* name : {"PMIX_NAMESPACE", "PMI_RANK"}) {
    SetUp();
    setenv(name, "0", 1);
    prefer_open_mpi_settings();
    expect_search_for_cards(true);
  }
}

TEST_F(OpenMpiSettings, WhatTheUserHasSetStays) {
  setenv("OMPI_MCA_pml", "ucx", 1);
  setenv("OMPI_MCA_btl_tcp_eager_limit", "65536", 1);
  setenv("HWLOC_COMPONENTS", "", 1);
  setenv("OMPI_MCA_ess_singleton_isolated", "0", 1);
  prefer_open_mpi_settings();
  EXPECT_EQ(value_of("OMPI_MCA_pml"), "ucx");
  EXPECT_EQ(value_of("OMPI_MCA_btl_tcp_eager_limit"), "65536");
  EXPECT_EQ(value_of("HWLOC_COMPONENTS"), "");
  EXPECT_EQ(value_of("OMPI_MCA_ess_singleton_isolated"), "0");
}

}  // namespace open_mpi_settings_test
}  // namespace lockstep::dist::mpi
