#include "python/module/python_calls.h"
#include "python/python_module.h"

namespace lockstep::python {
// Every Python object is used under the interpreter's lock. References are owned (Reference) unless
// marked as borrowed. This file is compiled for the stable interface (python_calls.h).
namespace {

PyObject* glue = nullptr;  // lockstep_glue, never released

/// str() of an object. Never fails, since it is used while an error is reported.
std::string text_of(PyObject* object) {
  const Reference text(PyObject_Str(object));
  Value value;
  if (text && from_python(text.get(), &value)) return value.as_text();
  PyErr_Clear();
  return "an error that cannot be shown";
}

/// Returns and clears Python's current exception.
std::string take_fault() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Reference owned_type(type), owned_value(value), owned_traceback(traceback);
  if (!owned_type) return "Python failed without an error";
  // describe_fault formats the traceback. During start() lockstep_glue may not exist yet.
  if (glue != nullptr && owned_value) {
    const Reference text(PyObject_CallMethod(glue, "describe_fault", "OOO", type, value,
                                             traceback == nullptr ? Py_None : traceback));
    if (text) return text_of(text.get());
    PyErr_Clear();
  }
  return owned_value ? text_of(value) : text_of(type);
}

bool set_path(const std::string& glue_folder) {
  PyObject* path = PySys_GetObject("path");  // borrowed
  const Reference folder = to_python(Value(glue_folder));
  return path != nullptr && folder && PyList_Append(path, folder.get()) == 0;
}

std::string start(const StartOptions& options) {
  wchar_t* program = Py_DecodeLocale(options.program.c_str(), nullptr);
  Py_SetProgramName(program);  // Python keeps the pointer
  // No signal handlers of Python: signals belong to the program.
  Py_InitializeEx(/*initsigs=*/0);
  std::string fault;
  if (set_path(options.glue_folder)) glue = PyImport_ImportModule("lockstep_glue");
  if (glue == nullptr) fault = take_fault();
  PyEval_SaveThread();  // releases the lock, which each call takes
  return fault;
}

CallResult call_locked(const char* function, const List& arguments) {
  const Reference callable(PyObject_GetAttrString(glue, function));
  if (!callable) return {{}, take_fault()};
  const Reference tuple(PyTuple_New(static_cast<Py_ssize_t>(arguments.size())));
  for (size_t i = 0; i < arguments.size(); ++i) {
    Reference argument = to_python(arguments[i]);
    if (!argument) return {{}, take_fault()};
    // PyTuple_SetItem takes over the reference, also if it fails.
    PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), argument.release());
  }
  const Reference object(PyObject_CallObject(callable.get(), tuple.get()));
  CallResult result;
  if (!object || !from_python(object.get(), &result.value)) result.fault = take_fault();
  return result;
}

CallResult call(const char* function, const List& arguments) {
  const InterpreterLock lock;
  return call_locked(function, arguments);
}

std::string pending_fault() {
  const InterpreterLock lock;
  return PyErr_Occurred() == nullptr ? "" : take_fault();
}

}  // namespace
}  // namespace lockstep::python

extern "C" __attribute__((visibility("default")))
const lockstep::python::ModuleTable lockstep_python_module{
    LOCKSTEP_BUILD_ID, lockstep::python::start, lockstep::python::call,
    lockstep::python::pending_fault};
