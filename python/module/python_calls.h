#pragma once

#define Py_LIMITED_API 0x030a0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <utility>

#include "python/value.h"

/// Python objects in C++. Everything here needs the interpreter's lock.
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

/// Scope with the interpreter's lock, on any thread. Python's thread-local state (threading.local,
/// its stack) lives from a thread's first lock to its end.
class InterpreterLock {
 public:
  InterpreterLock() : state_(take()) {}
  ~InterpreterLock() { PyGILState_Release(state_); }
  InterpreterLock(const InterpreterLock&) = delete;
  InterpreterLock& operator=(const InterpreterLock&) = delete;

 private:
  static PyGILState_STATE take();

  PyGILState_STATE state_;
};

/// Converts a value. Returns null, with a Python exception set, on failure.
Reference to_python(const Value& value);
/// Converts an object. Returns false, with a Python exception set, on failure.
bool from_python(PyObject* object, Value* value);

}  // namespace lockstep::python
