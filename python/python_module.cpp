#include "python/python_module.h"

#include <c10/core/TensorImpl.h>

#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

// The Python module: Python objects in C++, and the functions of ModuleTable. Everything here needs
// the interpreter's lock.
namespace lockstep::python {

/// Owner of one reference.
class Reference {
 public:
  Reference() = default;
  /// Takes over a reference. Null means that Python has raised an exception.
  explicit Reference(PyObject* owned) : object_(owned) {}
  static Reference to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Reference(borrowed);
  }
  ~Reference() { Py_XDECREF(object_); }
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// State of a thread, kept between locks. Python would create and delete it with each lock (20 us).
class KeptThreadState {
 public:
  KeptThreadState() {
    if (PyGILState_GetThisThreadState() != nullptr) return;  // a thread of Python
    taken_ = PyGILState_Ensure();
    state_ = PyEval_SaveThread();
  }
  ~KeptThreadState() {
    if (state_ == nullptr) return;
    PyEval_RestoreThread(state_);
    PyGILState_Release(taken_);
  }
  KeptThreadState(const KeptThreadState&) = delete;
  KeptThreadState& operator=(const KeptThreadState&) = delete;

 private:
  PyGILState_STATE taken_{};
  PyThreadState* state_ = nullptr;
};

/// Scope with the interpreter's lock, on any thread. Python's thread-local state (threading.local,
/// its stack) lives from a thread's first lock to its end.
class InterpreterLock {
 public:
  InterpreterLock() {
    // Created at a thread's first lock, destroyed at the thread's end.
    thread_local const KeptThreadState kept;
    state_ = PyGILState_Ensure();
  }
  ~InterpreterLock() { PyGILState_Release(state_); }
  InterpreterLock(const InterpreterLock&) = delete;
  InterpreterLock& operator=(const InterpreterLock&) = delete;

 private:
  PyGILState_STATE state_;
};

/// Converts a value. Returns null, with a Python exception set, on failure.
Reference to_python(const Value& value);
/// Converts an object. Returns false, with a Python exception set, on failure.
bool from_python(PyObject* object, Value* value);

namespace {

/// Wraps a tensor with torch._C._wrap_tensor_impl, which takes over a reference to its TensorImpl.
Reference to_python(const at::Tensor& tensor) {
  if (!tensor.defined()) return Reference::to(Py_None);
  // A call through Python: libtorch_python's own functions are bound to one version of Python.
  const Reference torch(PyImport_ImportModule("torch._C"));
  if (!torch) return {};
  // The capsule holds a plain pointer: on success Python owns this reference.
  c10::TensorImpl* owned = at::Tensor(tensor).unsafeReleaseTensorImpl();
  const Reference capsule(PyCapsule_New(owned, nullptr, nullptr));
  if (!capsule) return {};
  return Reference(PyObject_CallMethod(torch.get(), "_wrap_tensor_impl", "O", capsule.get()));
}

Reference to_python(const List& list) {
  Reference all(PyList_New(static_cast<Py_ssize_t>(list.size())));
  for (size_t i = 0; all && i < list.size(); ++i) {
    Reference item = to_python(list[i]);
    if (!item) return {};
    PyList_SetItem(all.get(), static_cast<Py_ssize_t>(i), item.release());
  }
  return all;
}

Reference to_python(const std::string& text) {
  return Reference(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
}

Reference to_python(const Map& map) {
  Reference dict(PyDict_New());
  for (const auto& [key, item] : map) {
    const Reference name = to_python(key);
    const Reference value = to_python(item);
    if (!dict || !name || !value || PyDict_SetItem(dict.get(), name.get(), value.get()) != 0)
      return {};
  }
  return dict;
}

/// Reads a list or tuple; nested values recursively.
bool list_from(PyObject* sequence, Value* value) {
  List list(static_cast<size_t>(PySequence_Size(sequence)));
  for (size_t i = 0; i < list.size(); ++i) {
    const Reference item(PySequence_GetItem(sequence, static_cast<Py_ssize_t>(i)));
    if (!item || !from_python(item.get(), &list[i])) return false;
  }
  *value = std::move(list);
  return true;
}

/// Reads a tensor. cdata: torch.Tensor._cdata, the address of its TensorImpl.
bool tensor_from(PyObject* cdata, Value* value) {
  void* address = PyLong_AsVoidPtr(cdata);
  if (address == nullptr) return false;
  // reclaim_copy adds a reference: Python keeps its own.
  *value = at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(
      static_cast<c10::TensorImpl*>(address)));
  return true;
}

bool text_from(PyObject* object, Value* value) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object, &size);
  if (text == nullptr) return false;
  *value = std::string(text, static_cast<size_t>(size));
  return true;
}

bool map_from(PyObject* dict, Value* value) {
  Map map;
  PyObject *key = nullptr, *item = nullptr;  // borrowed
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &item) != 0;) {
    Value name, inner;
    if (!PyUnicode_Check(key)) {
      PyErr_SetString(PyExc_TypeError, "keys of a dict must be strings");
      return false;
    }
    if (!text_from(key, &name) || !from_python(item, &inner)) return false;
    map.emplace_back(name.as_text(), std::move(inner));
  }
  *value = std::move(map);
  return true;
}

void forget(void* object) {
  // The last copy of an Object may die on any thread, without the lock.
  const InterpreterLock lock;
  Py_DecRef(static_cast<PyObject*>(object));
}

using SharedFunction = std::shared_ptr<const Function>;

/// Function of C++ with its description for Python, which a capsule owns.
struct HeldFunction {
  SharedFunction function;
  PyMethodDef definition;
};

HeldFunction* held_in(PyObject* capsule) {
  return static_cast<HeldFunction*>(PyCapsule_GetPointer(capsule, nullptr));
}

/// Calls the function that the capsule owns.
PyObject* call_function(PyObject* capsule, PyObject* arguments) {
  const HeldFunction* held = held_in(capsule);
  Value list;
  if (held == nullptr || !from_python(arguments, &list)) return nullptr;
  try {
    return to_python(held->function->call(list.as_list())).release();
  } catch (const std::exception& fault) {
    PyErr_SetString(PyExc_RuntimeError, fault.what());
    return nullptr;
  }
}

Reference to_python(const SharedFunction& function) {
  auto held = std::make_unique<HeldFunction>(
      HeldFunction{function, {"function_of_lockstep", call_function, METH_VARARGS, nullptr}});
  // Python's function object refers to the definition, and keeps the capsule alive.
  const Reference capsule(
      PyCapsule_New(held.get(), nullptr, [](PyObject* owner) { delete held_in(owner); }));
  if (!capsule) return {};
  return Reference(PyCFunction_New(&held.release()->definition, capsule.get()));
}

// Every Python object is used under the interpreter's lock. References are owned (Reference) unless
// marked as borrowed. This file is compiled for the stable interface (Py_LIMITED_API).

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

Reference to_python(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return Reference(PyBool_FromLong(*flag));
  if (const auto* number = std::get_if<int64_t>(&value))
    return Reference(PyLong_FromLongLong(*number));
  if (const auto* number = std::get_if<double>(&value))
    return Reference(PyFloat_FromDouble(*number));
  if (const auto* text = std::get_if<std::string>(&value)) return to_python(*text);
  if (const auto* tensor = std::get_if<at::Tensor>(&value)) return to_python(*tensor);
  if (const auto* list = std::get_if<List>(&value)) return to_python(*list);
  if (const auto* map = std::get_if<Map>(&value)) return to_python(*map);
  if (const auto* object = std::get_if<Object>(&value))
    return Reference::to(static_cast<PyObject*>(object->get()));
  if (const auto* function = std::get_if<SharedFunction>(&value)) return to_python(*function);
  return Reference::to(Py_None);
}

bool from_python(PyObject* object, Value* value) {
  if (object == Py_None) {
    *value = std::monostate();
  } else if (PyBool_Check(object)) {
    // Tested before int: bool is a subclass of int in Python.
    *value = object == Py_True;
  } else if (PyLong_Check(object)) {
    // Python integers are unbounded: an overflow is an exception.
    *value = static_cast<int64_t>(PyLong_AsLongLong(object));
    return PyErr_Occurred() == nullptr;
  } else if (PyFloat_Check(object)) {
    *value = PyFloat_AsDouble(object);
  } else if (PyUnicode_Check(object)) {
    return text_from(object, value);
  } else if (PyList_Check(object) || PyTuple_Check(object)) {
    return list_from(object, value);
  } else if (PyDict_Check(object)) {
    return map_from(object, value);
  } else {
    // Tensors are recognised by their attribute _cdata.
    const Reference cdata(PyObject_GetAttrString(object, "_cdata"));
    if (cdata && PyLong_Check(cdata.get())) return tensor_from(cdata.get(), value);
    PyErr_Clear();
    Py_IncRef(object);
    *value = Object(object, forget);
  }
  return true;
}

}  // namespace lockstep::python

extern "C" __attribute__((visibility("default")))
const lockstep::python::ModuleTable lockstep_python_module{
    LOCKSTEP_BUILD_ID, lockstep::python::start, lockstep::python::call,
    lockstep::python::pending_fault};
