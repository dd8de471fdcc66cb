#include "python/add_types.h"

#include "python/python_callback.h"
#include "python/python_dataset.h"
#include "python/python_model.h"

namespace lockstep::python {

void add_types() {
  [[maybe_unused]] static const bool added = [] {
    model::model_types().add(python_model_type());
    data::dataset_types().add(python_dataset_type());
    coord::callback_types().add(python_callback_type());
    return true;
  }();
}

}  // namespace lockstep::python
