// libcuda in software, as far as launchers of compiled kernels (Triton, Inductor) call it.
//
// Modules and functions have no code; a launch is an operation of the runtime (cudart.cpp). Types are
// plain, for functions here take what they do not look at as variable arguments, other than cuda.h.
#include <dlfcn.h>

#define API extern "C" __attribute__((visibility("default")))
#define SUCCEEDS(name) \
    API int name(...) { return 0; }
#define ANSWERS(name, type, answer) \
    API int name(type* value, ...) { return *value = answer, 0; }
#define HANDS_OUT(name) ANSWERS(name, void*, reinterpret_cast<void*>(8))

namespace {

const int NOT_SUPPORTED = 801;
const int CUDA_VERSION = 13000;

template <class Function>
Function of_runtime(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

int put(void* stream) {
    static auto runtime_put = of_runtime<int (*)(void*, const char*)>("dry_put");
    return runtime_put(stream, "compiled kernel");
}

int unsupported(...) { return NOT_SUPPORTED; }

struct LaunchConfig {  // the start of CUlaunchConfig
    unsigned grid[3], block[3], shared_bytes;
    void* stream;
};

}  // namespace

SUCCEEDS(cuInit)
SUCCEEDS(cuCtxSetCurrent)
SUCCEEDS(cuCtxSetLimit)
SUCCEEDS(cuFuncSetAttribute)
SUCCEEDS(cuFuncSetCacheConfig)
SUCCEEDS(cuModuleUnload)
HANDS_OUT(cuCtxGetCurrent)
HANDS_OUT(cuDevicePrimaryCtxRetain)
HANDS_OUT(cuModuleLoad)
HANDS_OUT(cuModuleLoadData)
HANDS_OUT(cuModuleLoadDataEx)
HANDS_OUT(cuModuleGetFunction)
ANSWERS(cuCtxGetLimit, unsigned long, 8 << 20)
ANSWERS(cuDriverGetVersion, int, CUDA_VERSION)
ANSWERS(cuDeviceGet, int, 0)
ANSWERS(cuDeviceGetCount, int, 1)
ANSWERS(cuFuncGetAttribute, int, 0)
ANSWERS(cuOccupancyMaxActiveBlocksPerMultiprocessor, int, 2)

API int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
    return *flags = 0, *active = 1, 0;
}
API int cuDeviceGetAttribute(int* value, int attribute, int device) {
    static auto read = of_runtime<int (*)(int*, int, int)>("cudaDeviceGetAttribute");
    return read(value, attribute, device);
}
API int cuPointerGetAttribute(void** value, int, void* address) { return *value = address, 0; }
API int cuGetErrorString(int, const char** text) { return *text = "an error in software", 0; }
API int cuLaunchKernel(
    void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void* stream, ...) {
    return put(stream);
}
API int cuLaunchKernelEx(const LaunchConfig* launch, ...) { return put(launch->stream); }
API int cuGetProcAddress_v2(const char* name, void** function, int, unsigned long, int* result) {
    static void* here = dlopen("libcuda.so.1", RTLD_NOW);
    *function = dlsym(here, name);
    if (!*function) *function = reinterpret_cast<void*>(unsupported);
    if (result) *result = 0;
    return 0;
}
