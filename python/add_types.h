#pragma once

namespace lockstep::python {

/// Adds the row `python` to the tables of networks, data sets and callbacks, once; whoever reads
/// run files calls it first.
void add_types();

}  // namespace lockstep::python
