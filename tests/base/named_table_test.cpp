#include "base/named_table.h"

#include <functional>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace named_table_test {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Row {
  std::string name;
  std::function<int()> read;
};

Row row(const std::string& name, int number) {
  return {name, [number] { return number; }};
}

TEST(NamedTable, FindsRowsByNameInTheOrderInWhichTheyWereAdded) {
  NamedTable<Row> table("network");
  EXPECT_EQ(table.find("a"), nullptr);
  table.add(row("b", 1));
  const Row* first = table.find("b");
  for (int i = 0; i < 100; ++i) table.add(row("row" + std::to_string(i), i));
  EXPECT_EQ(table.find("b"), first) << "rows stay where they are";
  EXPECT_EQ(table.find("row42")->read(), 42);
  EXPECT_EQ(table.find("row100"), nullptr);
  EXPECT_EQ(table.names().size(), 101U);
  EXPECT_EQ(table.names()[0], "b");
  std::vector<int> numbers, wanted(101, 1);
  for (const Row* row : table.rows()) numbers.push_back(row->read());
  std::iota(wanted.begin() + 1, wanted.end(), 0);
  EXPECT_EQ(numbers, wanted);
}

TEST(NamedTable, TwoRowsOfOneNameAreRefusedWithBothOrigins) {
  NamedTable<Row> table("network");
  table.add(row("mlp", 1));
  EXPECT_EQ(table.find("mlp")->read(), 1);
  const int line = __LINE__ + 1;
  table.add(row("mlp", 2));
  table.add(row("mlp", 3));
  EXPECT_THROW((void)table.names(), Error);
  EXPECT_THROW((void)table.rows(), Error);
  try {
    (void)table.find("other");
    FAIL() << "two rows of one name";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
    EXPECT_THAT(fault.what(), AllOf(HasSubstr("network"), HasSubstr("'mlp'"),
                                    HasSubstr(":" + std::to_string(line) + ";"),
                                    HasSubstr(":" + std::to_string(line - 3) + ",")));
  }
}

TEST(NamedTable, ARowWithoutItsFunctionIsRefusedWithItsOrigin) {
  struct Metric {
    std::string name;
    std::function<double()> value;
  };
  const auto text_of = [](const auto& table) -> std::string {
    try {
      (void)table.names();
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kConfig);
      return fault.what();
    }
    return "no fault";
  };
  NamedTable<Row> networks("network");
  networks.add(row("mlp", 1));
  const int line = __LINE__ + 1;
  networks.add({.name = "mine", .read = {}});
  networks.add(row("mlp", 2));  // the first fault is told
  EXPECT_THROW((void)networks.find("mlp"), Error);
  EXPECT_THAT(text_of(networks),
              AllOf(HasSubstr("network"), HasSubstr("'mine'"), HasSubstr("no function"),
                    HasSubstr("named_table_test.cpp:" + std::to_string(line) + " ")));
  NamedTable<Metric> metrics("metric");
  metrics.add({"good", [] { return 1.0; }});
  EXPECT_EQ(text_of(metrics), "no fault");
  metrics.add({"bad", nullptr});
  EXPECT_THAT(text_of(metrics), HasSubstr("'bad' of "));
}

}  // namespace named_table_test
}  // namespace lockstep
