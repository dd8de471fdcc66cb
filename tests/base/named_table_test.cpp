#include "base/named_table.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace named_table_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Row {
  std::string name;
  int number = 0;
};

TEST(NamedTable, FindsRowsByNameInTheOrderInWhichTheyWereAdded) {
  NamedTable<Row> table("network");
  EXPECT_EQ(table.find("a"), nullptr);
  table.add({"b", 1});
  const Row* first = table.find("b");
  for (int i = 0; i < 100; ++i) table.add({"row" + std::to_string(i), i});
  EXPECT_EQ(table.find("b"), first) << "rows stay where they are";
  EXPECT_EQ(table.find("row42")->number, 42);
  EXPECT_EQ(table.find("row100"), nullptr);
  EXPECT_EQ(table.names().size(), 101U);
  EXPECT_EQ(table.names()[0], "b");
  std::vector<int> numbers, wanted(101, 1);
  for (const Row& row : table.rows()) numbers.push_back(row.number);
  std::iota(wanted.begin() + 1, wanted.end(), 0);
  EXPECT_EQ(numbers, wanted);
}

TEST(NamedTable, TwoRowsOfOneNameAreRefusedWithBothOrigins) {
  NamedTable<Row> table("network");
  table.add({"mlp", 1});
  const int line = __LINE__ + 2;
  try {
    table.add({"mlp", 2});
    FAIL() << "two rows of one name";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
    EXPECT_THAT(fault.what(), AllOf(HasSubstr("network"), HasSubstr("'mlp'"),
                                    HasSubstr(":" + std::to_string(line) + ";"),
                                    HasSubstr(":" + std::to_string(line - 3) + ",")));
  }
  EXPECT_EQ(table.find("mlp")->number, 1);
  EXPECT_THAT(table.names(), ElementsAre("mlp"));
}

}  // namespace named_table_test
}  // namespace lockstep
