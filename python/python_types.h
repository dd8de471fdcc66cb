#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "coord/callback.h"
#include "coord/callback_types.h"
#include "data/dataset_table.h"
#include "model/model.h"
#include "model/networks/model_table.h"
#include "python/python_module.h"

/// Rows `python` of the tables of callbacks, data sets and networks: code of the user in Python.
namespace lockstep::python {

/// Common keys of the sections `model`, `data.train`, `data.eval` and callbacks of type python.
struct PythonArgs {
  std::string path;         ///< path of the .py file
  std::string name;         ///< class or function defined in it
  std::string args = "{}";  ///< keyword arguments, a JSON map
  std::string python;       ///< interpreter; empty: find_python()
};

/// Python's value of a plain YAML scalar, as JSON: null, a flag, a number, or a text.
std::string json_of_plain(const std::string& text);

/// Reads the common keys. Each help text begins with "python: ".
PythonArgs read_python_args(ConfigReader* in);

/// Creates a callback of a user: `callbacks: {mine: {type: python, path: my.py, name: Mine}}`. One
/// method of the object decides what it is: on_iteration_end, save_sample (SaverCallback),
/// process_buffer (BufferCallback) or sums (KpiEvaluator). The method gets each incoming key as a
/// keyword argument:
///
///   class Mine:
///       incoming_keys = ["logits"]
///       generated_keys = ["classes"]
///       def on_iteration_end(self, logits):
///           return {"classes": logits.argmax(1)}
///
/// Tensors share memory with the other side. Texts are lists of str, nested maps are dicts. The
/// context is set as attributes of the object before each call (docs/callbacks.md).
///
/// what: its place in the run file, such as callbacks.mine. Throws Error(kConfig), with file and
/// line, if Python raises; so does each call of the callback. Also throws if keys are not texts, or
/// if the method does not accept them.
///
/// Threads: as for any callback. Each call takes the interpreter's lock and releases it.
std::unique_ptr<coord::Callback> make_python_callback(const PythonArgs& args,
                                                      const std::string& what,
                                                      const coord::Services& services = {});

/// Row of `python` in the table of callbacks.
coord::CallbackType python_callback_type();

struct PythonDatasetOptions {
  PythonArgs args;
  std::string targets = "auto";  ///< auto | class | soft | values | tokens
  int64_t num_classes = 0;       ///< 0: the object's num_classes, vocab_size or classes
  int64_t num_workers = 0;       ///< worker processes that read samples; 0: this process does
  bool is_iterable = false;      ///< read by iteration, in the object's order
  int64_t num_samples = 0;       ///< of an epoch of an iterable; 0: its length
};

/// Data set of a user, `data.train: {type: python}`: any object with __len__ and a __getitem__ that
/// returns (input, target), or several tensors as a tuple, a dict or a dataclass. For inference it
/// may return the input alone. Its collate_fn, if any, makes the batches. Samples are read by index
/// in Lockstep's order. Before each one, `random`, numpy.random and torch's default generator are
/// seeded from (seed, epoch, index).
///
/// An iterable is read forward: samples of other ranks are read and dropped. An index before the
/// last one starts the iteration again, at that index if the object has skip(count).
class PythonDataset final : public data::Dataset {
 public:
  /// Creates the object. what: data.train or data.eval, for messages. Throws Error(kBadData), with
  /// file and line, if Python raises, or if a sample differs when it is read twice. Throws
  /// Error(kConfig) if damaged samples shall be skipped but cannot be.
  PythonDataset(const PythonDatasetOptions& options, const data::DatasetInputs& inputs,
                const std::string& what);
  ~PythonDataset() override;

  int64_t num_samples() const override { return num_samples_; }
  data::SampleSpec spec() const override { return spec_; }
  /// Throws Error(kBadData) for a bad sample, Error(kUnavailable) if a worker was killed.
  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  std::string digest() const override;
  /// True with workers: each thread waits for one of them. Without workers this process reads, and
  /// it must not draw from torch's generator during a forward pass.
  bool reads_in_threads() const override { return !pool_.is_none(); }
  int64_t usual_threads() const override { return num_workers_; }
  bool is_sequential() const override { return is_iterable_; }

 private:
  bool is_iterable_;
  int64_t num_samples_ = 0;
  int64_t num_workers_ = 0;  ///< at most 1 if iterable: each worker would read the whole stream
  bool lacks_targets_ = false;
  data::SampleSpec spec_;
  Value data_, pool_;
};

/// Network of a user, `model: {type: python}`: a torch.nn.Module in the interpreter of this
/// process. Its parameters share memory with this model's, also after they are moved into flat
/// buffers. Names are those of state_dict().
///
/// The default generators of torch, `random` and `numpy.random` are seeded before each forward pass
/// of training. The seed follows from (seed, step, position of the batch in the global batch). The
/// set of trained parameters and of buffers is fixed when the module is built. Other tensors that
/// forward changes are made equal on all ranks by the training step (train/step/buffers.h).
///
/// Its layers() are the torch.nn.Linear and Conv1d to Conv3d that own a trained weight.
class PythonModel final : public model::Model {
 public:
  /// Creates the module. Throws Error(kConfig), with file and line, if Python raises. Also throws
  /// if a parameter is not float32, or if no parameter is trained.
  PythonModel(const PythonArgs& args, const model::ModelInputs& data);
  ~PythonModel() override { *hook_ = nullptr; }

  at::Tensor forward(const at::Tensor& inputs_BX) override {
    return forward_of({.tensors = {inputs_BX}});
  }
  at::Tensor forward_of(const ForwardArguments& inputs) override;
  model::OwnLoss own_loss(const ForwardArguments& batch) override;
  /// Asks the network itself: the loss of samples in which only the first targets count.
  int64_t num_unused_targets() const override;
  void begin_forward(const model::ForwardPass& pass) override;
  void set_training(bool training) override;
  /// Gives the layers a forward that calls the hook, when the first one is set.
  void set_layer_hook(LayerHook* hook) override;
  /// Looks the buffers up by name at each call: forward may have replaced a buffer's tensor.
  const std::vector<model::Buffer>& buffers() const override;
  std::vector<model::Buffer> unsaved_buffers() const override;
  std::vector<std::string> frozen_params() const override;
  void move_buffers_to(at::Device device) override;
  bool runs_user_code() const override { return true; }
  /// Also throws if the parameters are no longer those of the module.
  void after_backward() override;

  /// Describes the network if its layers follow each other, which tracing shows. num_dims: of a
  /// batch of inputs. Throws Error(kUsage) with the reason if it is not such a chain.
  model::Network chain(size_t num_dims) const;

  /// Calls a function of lockstep_glue with the module as its first argument. Throws
  /// Error(kConfig), with file and line, if Python raises.
  Value call_glue(const char* function, List arguments) const;

 private:
  /// Returns the buffers that checkpoints contain, or the others.
  std::vector<model::Buffer> look_up(bool are_saved) const;

  std::string path_;
  Object module_;
  int64_t seed_;
  at::Device device_ = at::kCPU;
  int64_t num_backwards_ = 0;
  /// Hook that the layers in Python call, or null. These may outlive this model.
  std::shared_ptr<LayerHook*> hook_ = std::make_shared<LayerHook*>(nullptr);
  bool layers_call_hook_ = false;
  mutable std::vector<model::Buffer> buffers_;  ///< as of the last call of buffers()
};

/// Adds the row `python` to the tables of networks, data sets and callbacks, once. Must be called
/// before a run file is read.
void add_types();

}  // namespace lockstep::python
