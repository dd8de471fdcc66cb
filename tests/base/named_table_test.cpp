#include "base/named_table.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace named_table_test {

using ::testing::AllOf;
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
  for (const Row* row : table.rows()) numbers.push_back(row->number);
  std::iota(wanted.begin() + 1, wanted.end(), 0);
  EXPECT_EQ(numbers, wanted);
}

TEST(NamedTable, TwoRowsOfOneNameAreRefusedWithBothOrigins) {
  NamedTable<Row> table("network");
  table.add({"mlp", 1});
  EXPECT_EQ(table.find("mlp")->number, 1);
  const int line = __LINE__ + 1;
  table.add({"mlp", 2});
  table.add({"mlp", 3});
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

}  // namespace named_table_test
}  // namespace lockstep
