#include "data/datasets/dataset_table.h"

#include "data/datasets/digits_dataset.h"
#include "data/datasets/files_types.h"
#include "data/datasets/random_dataset.h"

namespace lockstep::data {

NamedTable<DatasetType>& dataset_types() {
  static NamedTable<DatasetType> types = [] {
    NamedTable<DatasetType> own("data.type");
    own.add(digits_type());
    own.add(random_type());
    for (DatasetType& type : files_types()) own.add(std::move(type));
    return own;
  }();
  return types;
}

DatasetOptions read_dataset_options(ConfigReader in, DatasetUse use) {
  DatasetOptions options;
  in.read_choice("type", &options.type, dataset_types().names(), "which data set");
  if (const DatasetType* type = dataset_types().find(options.type))
    static_cast<DatasetPlan&>(options) = type->read(&in, use);
  in.done();
  return options;
}

}  // namespace lockstep::data
