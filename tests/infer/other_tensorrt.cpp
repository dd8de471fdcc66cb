// A TensorRT module of another build: it must not be called.
#include <cstdlib>

extern "C" const char* lockstep_tensorrt_build_id() { return "another"; }
extern "C" void* lockstep_tensorrt_compile() { std::abort(); }
