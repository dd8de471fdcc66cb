#pragma once

namespace lockstep::python {

/// Adds the row `python` to the tables of networks, data sets and callbacks, once. Must be called
/// before a run file is read.
void add_types();

}  // namespace lockstep::python
