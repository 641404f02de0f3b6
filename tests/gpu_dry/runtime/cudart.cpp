// libcudart in software, for LD_PRELOAD under a CUDA build of torch on a machine without a GPU.
//
//   torch ──> streams, events ──> operations: counted, noted where asked for, not computed
//        ├──> captures        ──> graphs: operations, each with those that it comes after
//        └──> memory          ──> the host's; copies and memsets outside of captures are real
//
// A capture refuses what the reference manual of the CUDA Runtime API says that it refuses, with its
// error codes, and is invalid from then on. Device time is simulated: every operation takes
// OPERATION_US, after those on its stream and those that it waited for. Everything asked for is done at
// once, so queries and synchronisations never wait. dry_* is what tests ask (device.py).
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#undef cudaGetDeviceProperties
#define API extern "C" __attribute__((visibility("default")))
#define ANSWERS(name, parameters, ...) \
    API cudaError_t name parameters { __VA_ARGS__; return cudaSuccess; }
#define LOCKED std::lock_guard<std::recursive_mutex> lock_(mutex)
#define UNLESS_LOST \
    LOCKED;         \
    if (lost) return lost

namespace {

const double OPERATION_US = 5.0;
const size_t DEVICE_BYTES = 79ull << 30;

using Places = std::set<int>;  // of operations in a graph

struct Operation {
    std::string what;
    Places after;
    double ends_us;
};

struct Graph {
    std::vector<Operation> operations;

    double duration_us() const {
        double longest_us = 0;
        for (auto& operation : operations) longest_us = std::max(longest_us, operation.ends_us);
        return longest_us;
    }

    Places ancestors(const Places& of) const {
        Places all;
        std::vector<int> open(of.begin(), of.end());
        while (!open.empty()) {
            int place = open.back();
            open.pop_back();
            if (!all.insert(place).second) continue;
            open.insert(open.end(), operations[place].after.begin(), operations[place].after.end());
        }
        return all;
    }
};

struct Capture;

struct Stream {
    int priority = 0;
    bool blocking = true;  // orders itself with the legacy stream
    double clock_us = 0;
    Capture* capture = nullptr;
    Places last;  // in the capture: what the next operation comes after
};

struct Capture {
    unsigned long long id;
    Stream* origin;
    cudaStreamCaptureMode mode;
    std::thread::id thread;
    Graph* graph;
    std::set<Stream*> streams;
    bool invalid = false;
};

struct Event {
    bool timed, recorded = false;
    double at_us = 0;
    unsigned long long capture = 0;
    Places after;
};

std::recursive_mutex mutex;
std::map<unsigned long long, Capture*> captures;  // those under way
std::map<char*, size_t> device_memory, host_memory;
std::map<const void*, std::string> kernel_names;
Stream legacy;
Graph latest_graph;
bool noting = false;
std::string notes;
cudaError_t lost = cudaSuccess;  // the sticky error, once there is one
size_t capacity = DEVICE_BYTES, used = 0;
long strays = 0, graphs = 0, executables = 0, streams = 0, events = 0;
unsigned long long next_capture = 1;
thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

template <class Object, class Handle>
Object* as(Handle handle) { return reinterpret_cast<Object*>(handle); }

cudaError_t failed(cudaError_t error) { return last_error = error; }

cudaError_t refused(Capture* capture, cudaError_t error) {
    capture->invalid = true;
    return failed(error);
}

Stream* stream_of(cudaStream_t handle) {
    bool is_legacy = !handle || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
    return is_legacy ? &legacy : as<Stream>(handle);
}

bool is_own(const Capture* capture) { return capture->thread == std::this_thread::get_id(); }

// Of a call that is unsafe while something is captured, by cudaThreadExchangeStreamCaptureMode's rules.
cudaError_t unsafe() {
    if (lost) return lost;
    if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
    for (auto& [id, capture] : captures) {
        bool forbids = is_own(capture) ? capture->mode != cudaStreamCaptureModeRelaxed
                                       : capture->mode == cudaStreamCaptureModeGlobal &&
                                             thread_mode == cudaStreamCaptureModeGlobal;
        if (forbids) return refused(capture, cudaErrorStreamCaptureUnsupported);
    }
    return cudaSuccess;
}

// Of work on the legacy stream, which waits for all blocking streams: those must not be captured.
cudaError_t implicit(Stream* stream) {
    if (stream != &legacy) return cudaSuccess;
    for (auto& [id, capture] : captures)
        for (Stream* member : capture->streams)
            if (member->blocking) return refused(capture, cudaErrorStreamCaptureImplicit);
    return cudaSuccess;
}

// The process to which CUDA_DRY_STICKY's file falls, by removing it, has lost its device.
void look_for_sticky_file() {
    static const char* file = getenv("CUDA_DRY_STICKY");
    if (file && !lost && unlink(file) == 0) lost = cudaErrorIllegalAddress;
}

cudaError_t put(cudaStream_t handle, const std::string& what) {
    UNLESS_LOST;
    Stream* stream = stream_of(handle);
    if (Capture* capture = stream->capture) {
        if (capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
        double starts_us = 0;
        for (int place : stream->last)
            starts_us = std::max(starts_us, capture->graph->operations[place].ends_us);
        int place = static_cast<int>(capture->graph->operations.size());
        capture->graph->operations.push_back({what, stream->last, starts_us + OPERATION_US});
        stream->last = {place};
        return cudaSuccess;
    }
    if (cudaError_t error = implicit(stream)) return error;
    for (auto& [id, capture] : captures) strays += is_own(capture);
    stream->clock_us += OPERATION_US;
    if (noting) notes += what + "\n";
    return cudaSuccess;
}

cudaError_t allocate(std::map<char*, size_t>& memory, void** address, size_t bytes) {
    size_t pages = std::max<size_t>(bytes, 1);
    *address = mmap(nullptr, pages, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*address == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    memory[static_cast<char*>(*address)] = pages;
    return cudaSuccess;
}

cudaError_t give_back(std::map<char*, size_t>& memory, void* address) {
    auto block = memory.find(static_cast<char*>(address));
    if (block == memory.end()) return failed(cudaErrorInvalidValue);
    munmap(address, block->second);
    memory.erase(block);
    return cudaSuccess;
}

bool holds(const std::map<char*, size_t>& memory, const void* address) {
    auto block = memory.upper_bound(static_cast<char*>(const_cast<void*>(address)));
    return block != memory.begin() && (--block, address < block->first + block->second);
}

cudaStreamCaptureStatus status_of(const Stream* stream) {
    if (!stream->capture) return cudaStreamCaptureStatusNone;
    return stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                    : cudaStreamCaptureStatusActive;
}

cudaError_t unsupported() { return cudaErrorNotSupported; }

}  // namespace

// The device: an H100, as far as torch looks

API cudaError_t cudaGetDeviceCount(int* count) {
    const char* visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = !visible || strcmp(visible, "0") == 0;
    return *count ? cudaSuccess : failed(cudaErrorNoDevice);
}
ANSWERS(cudaGetDevice, (int* device), *device = 0)
API cudaError_t cudaSetDevice(int device) {
    return device == 0 ? cudaSuccess : failed(cudaErrorInvalidDevice);
}
ANSWERS(cudaDriverGetVersion, (int* version), *version = CUDART_VERSION)
ANSWERS(cudaDeviceGetPCIBusId, (char* text, int size, int), snprintf(text, size, "0000:01:00.0"))
ANSWERS(cudaDeviceGetStreamPriorityRange, (int* least, int* greatest), *least = 0, *greatest = -5)
ANSWERS(cudaDeviceCanAccessPeer, (int* can, int, int), *can = 0)
ANSWERS(cudaDeviceEnablePeerAccess, (int, unsigned), )

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* facts, int) {
    memset(facts, 0, sizeof *facts);
    strcpy(facts->name, "H100 in software");
    facts->major = 9;
    facts->totalGlobalMem = DEVICE_BYTES;
    facts->multiProcessorCount = 132;
    facts->warpSize = 32;
    facts->maxThreadsPerBlock = facts->maxThreadsDim[0] = facts->maxThreadsDim[1] = 1024;
    facts->maxThreadsDim[2] = 64;
    facts->maxThreadsPerMultiProcessor = 2048;
    facts->maxBlocksPerMultiProcessor = 32;
    facts->maxGridSize[0] = 2147483647;
    facts->maxGridSize[1] = facts->maxGridSize[2] = 65535;
    facts->regsPerBlock = facts->regsPerMultiprocessor = 65536;
    facts->sharedMemPerBlock = 48 << 10;
    facts->sharedMemPerBlockOptin = 227 << 10;
    facts->sharedMemPerMultiprocessor = 228 << 10;
    facts->l2CacheSize = 50 << 20;
    facts->cooperativeLaunch = facts->streamPrioritiesSupported = 1;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    static const std::map<int, int> values = {
        {cudaDevAttrMultiProcessorCount, 132},
        {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 228 << 10},
        {cudaDevAttrMaxRegistersPerBlock, 65536},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrMaxGridDimX, 2147483647},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrClockRate, 1980000},
        {cudaDevAttrMemoryClockRate, 2619000},
        {cudaDevAttrGlobalMemoryBusWidth, 5120},
    };
    auto entry = values.find(attribute);
    return *value = entry == values.end() ? 0 : entry->second, cudaSuccess;
}

// Errors; their texts are the real library's

API cudaError_t cudaGetLastError() {
    cudaError_t error = std::exchange(last_error, cudaSuccess);
    return lost ? lost : error;
}
API cudaError_t cudaPeekAtLastError() { return lost ? lost : last_error; }

// Memory

API cudaError_t cudaMalloc(void** address, size_t bytes) {
    LOCKED;
    if (cudaError_t error = unsafe()) return error;
    if (used + bytes > capacity) return failed(cudaErrorMemoryAllocation);
    used += bytes;
    return allocate(device_memory, address, bytes);
}
API cudaError_t cudaFree(void* address) {
    LOCKED;
    if (!address) return cudaSuccess;
    if (cudaError_t error = unsafe()) return error;
    auto block = device_memory.find(static_cast<char*>(address));
    if (block != device_memory.end()) used -= block->second;
    return give_back(device_memory, address);
}
API cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
    LOCKED;
    cudaError_t error = unsafe();
    return error ? error : allocate(host_memory, address, bytes);
}
API cudaError_t cudaFreeHost(void* address) {
    LOCKED;
    cudaError_t error = unsafe();
    return error ? error : give_back(host_memory, address);
}
API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    UNLESS_LOST;
    *total = capacity;
    *free = capacity - std::min(used, capacity);
    return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* facts, const void* address) {
    UNLESS_LOST;
    memset(facts, 0, sizeof *facts);
    facts->type = cudaMemoryTypeUnregistered;
    if (holds(device_memory, address)) {
        facts->type = cudaMemoryTypeDevice;
        facts->devicePointer = const_cast<void*>(address);
    } else if (holds(host_memory, address)) {
        facts->type = cudaMemoryTypeHost;
        facts->hostPointer = const_cast<void*>(address);
    }
    return cudaSuccess;
}
API cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    if (cudaError_t error = put(stream, "memcpy")) return error;
    if (!stream_of(stream)->capture) memmove(to, from, bytes);
    return cudaSuccess;
}
API cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    LOCKED;
    if (cudaError_t error = unsafe()) return error;
    return memmove(to, from, bytes), cudaSuccess;
}
API cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
    if (cudaError_t error = put(stream, "memset")) return error;
    if (!stream_of(stream)->capture) memset(to, value, bytes);
    return cudaSuccess;
}
ANSWERS(cudaMemcpyToSymbol, (const void*, const void*, size_t, size_t, cudaMemcpyKind), )
API cudaError_t cudaGetSymbolAddress(void** address, const void*) {
    static char variables[1 << 16];
    return *address = variables, cudaSuccess;
}

// Streams and events

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
    UNLESS_LOST;
    streams++;
    *handle = reinterpret_cast<cudaStream_t>(new Stream{priority, !(flags & cudaStreamNonBlocking)});
    return cudaSuccess;
}
API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
    LOCKED;
    streams--;
    return delete stream_of(handle), cudaSuccess;
}
API cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
    return *priority = stream_of(handle)->priority, cudaSuccess;
}
API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
    UNLESS_LOST;
    Stream* stream = stream_of(handle);
    if (stream->capture) return refused(stream->capture, cudaErrorStreamCaptureUnsupported);
    return stream == &legacy ? unsafe() : cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t handle) { return cudaStreamSynchronize(handle); }
API cudaError_t cudaDeviceSynchronize() {
    LOCKED;
    return unsafe();
}
API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
    UNLESS_LOST;
    events++;
    *handle = reinterpret_cast<cudaEvent_t>(new Event{!(flags & cudaEventDisableTiming)});
    return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
    LOCKED;
    events--;
    return delete as<Event>(handle), cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
    UNLESS_LOST;
    Stream* stream = stream_of(on);
    Event* event = as<Event>(handle);
    if (stream->capture && stream->capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
    if (cudaError_t error = implicit(stream)) return error;
    event->recorded = true;
    event->capture = stream->capture ? stream->capture->id : 0;
    event->after = stream->last;
    event->at_us = stream->clock_us;
    if (noting && event->timed && !event->capture) notes += "event\n";
    return cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return cudaEventRecord(event, stream);
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned) {
    UNLESS_LOST;
    Stream* stream = stream_of(handle);
    Event* event = as<Event>(awaited);
    if (!event->capture) {
        if (stream->capture && event->recorded)
            return refused(stream->capture, cudaErrorStreamCaptureIsolation);
        stream->clock_us = std::max(stream->clock_us, event->at_us);
        return cudaSuccess;
    }
    auto entry = captures.find(event->capture);
    if (entry == captures.end())
        return stream->capture ? refused(stream->capture, cudaErrorCapturedEvent)
                               : failed(cudaErrorCapturedEvent);
    Capture* capture = entry->second;
    if (capture->invalid) return failed(cudaErrorStreamCaptureInvalidated);
    if (stream->capture && stream->capture != capture) {
        stream->capture->invalid = true;
        return refused(capture, cudaErrorStreamCaptureMerge);
    }
    if (stream == &legacy) return refused(capture, cudaErrorStreamCaptureImplicit);
    stream->capture = capture;
    capture->streams.insert(stream);
    stream->last.insert(event->after.begin(), event->after.end());
    return cudaSuccess;
}
API cudaError_t cudaEventQuery(cudaEvent_t handle) {
    UNLESS_LOST;
    Event* event = as<Event>(handle);
    if (!event->capture) return unsafe();
    auto entry = captures.find(event->capture);
    if (entry != captures.end()) entry->second->invalid = true;
    return failed(cudaErrorCapturedEvent);
}
API cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaEventQuery(event); }
API cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t first, cudaEvent_t second) {
    UNLESS_LOST;
    Event *start = as<Event>(first), *end = as<Event>(second);
    for (Event* event : {start, end})
        if (!event->recorded || !event->timed || event->capture)
            return failed(cudaErrorInvalidResourceHandle);
    *ms = static_cast<float>((end->at_us - start->at_us) / 1e3);
    return cudaSuccess;
}

// Captures and graphs

API cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
    UNLESS_LOST;
    Stream* stream = stream_of(handle);
    if (stream == &legacy) return failed(cudaErrorStreamCaptureUnsupported);
    if (stream->capture) return failed(cudaErrorIllegalState);
    auto* capture = new Capture{next_capture++, stream, mode, std::this_thread::get_id(), new Graph};
    graphs++;
    capture->streams.insert(stream);
    captures[capture->id] = stream->capture = capture;
    return cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
    UNLESS_LOST;
    *graph = nullptr;
    Stream* stream = stream_of(handle);
    Capture* capture = stream->capture;
    if (!capture) return failed(cudaErrorIllegalState);
    if (capture->origin != stream) return refused(capture, cudaErrorStreamCaptureUnmatched);
    if (!is_own(capture) && capture->mode != cudaStreamCaptureModeRelaxed)
        return refused(capture, cudaErrorStreamCaptureWrongThread);
    size_t joined = capture->graph->ancestors(stream->last).size();
    cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated
                        : joined < capture->graph->operations.size() ? cudaErrorStreamCaptureUnjoined
                                                                     : cudaSuccess;
    for (Stream* member : capture->streams) {
        member->capture = nullptr;
        member->last.clear();
    }
    captures.erase(capture->id);
    if (error) {
        graphs--;
        delete capture->graph;
    } else {
        *graph = reinterpret_cast<cudaGraph_t>(capture->graph);
    }
    delete capture;
    return error ? failed(error) : cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    UNLESS_LOST;
    return *status = status_of(stream_of(stream)), cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph,
    const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
    UNLESS_LOST;
    Stream* stream = stream_of(handle);
    *status = status_of(stream);
    if (id) *id = stream->capture ? stream->capture->id : 0;
    if (graph)
        *graph = stream->capture ? reinterpret_cast<cudaGraph_t>(stream->capture->graph) : nullptr;
    if (nodes) *nodes = nullptr;
    if (edges) *edges = nullptr;
    if (count) *count = 0;
    return cudaSuccess;
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return std::swap(*mode, thread_mode), cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
    return *count = as<Graph>(graph)->operations.size(), cudaSuccess;
}
API cudaError_t cudaGraphInstantiateWithFlags(
    cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
    LOCKED;
    if (cudaError_t error = unsafe()) return error;
    executables++;
    latest_graph = *as<Graph>(graph);
    *executable = reinterpret_cast<cudaGraphExec_t>(new Graph(latest_graph));
    return cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    LOCKED;
    graphs--;
    return delete as<Graph>(graph), cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    LOCKED;
    if (cudaError_t error = unsafe()) return error;
    executables--;
    return delete as<Graph>(executable), cudaSuccess;
}
API cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    LOCKED;
    look_for_sticky_file();
    if (cudaError_t error = put(stream, "replay")) return error;
    if (stream_of(stream)->capture) return cudaSuccess;
    stream_of(stream)->clock_us += as<Graph>(executable)->duration_us();
    return cudaSuccess;
}

// Kernels

API void __cudaRegisterFunction(
    void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    LOCKED;
    kernel_names[host] = name;
}
API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    return *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host)), cudaSuccess;
}
API cudaError_t cudaLaunchKernel(const void* host, dim3, dim3, void**, size_t, cudaStream_t stream) {
    LOCKED;
    auto entry = kernel_names.find(host);
    return put(stream, entry == kernel_names.end() ? "kernel" : entry->second);
}
API cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t bytes, cudaStream_t stream) {
    return cudaLaunchKernel(kernel, grid, block, arguments, bytes, stream);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* launch, const void* host, void** arguments) {
    return cudaLaunchKernel(host, {}, {}, arguments, 0, launch->stream);
}
API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* facts, const void*) {
    memset(facts, 0, sizeof *facts);
    facts->maxThreadsPerBlock = 1024;
    facts->numRegs = 32;
    facts->binaryVersion = facts->ptxVersion = 90;
    return cudaSuccess;
}
ANSWERS(cudaFuncSetAttribute, (const void*, cudaFuncAttribute, int), )
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, size_t, unsigned) {
    return *blocks = 2, cudaSuccess;
}
API cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
    static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    *function = driver ? dlsym(driver, name) : nullptr;
    if (!*function) *function = reinterpret_cast<void*>(unsupported);
    if (result) *result = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}

// What tests and the other libraries ask

API int dry_put(void* stream, const char* what) { return put(static_cast<cudaStream_t>(stream), what); }
API void dry_capacity(size_t bytes) { capacity = bytes ? bytes : DEVICE_BYTES; }

// Operations in the capture of this thread so far; -1 outside of captures.
API int dry_captured() {
    LOCKED;
    for (auto& [id, capture] : captures)
        if (is_own(capture)) return static_cast<int>(capture->graph->operations.size());
    return -1;
}

// Begins or ends a list of eager operations and timed events; what was noted, a line each.
API const char* dry_note(int begin) {
    LOCKED;
    static std::string noted;
    noted = std::exchange(notes, "");
    noting = begin;
    return noted.c_str();
}

// The graph that was instantiated last: a line for each operation, what it is and what it comes after.
API const char* dry_graph() {
    LOCKED;
    static std::string text;
    text.clear();
    for (auto& operation : latest_graph.operations) {
        text += operation.what + "\t";
        for (int place : operation.after) text += std::to_string(place) + " ";
        text += "\n";
    }
    return text.c_str();
}

API const char* dry_counts() {
    LOCKED;
    static char text[512];
    snprintf(text, sizeof text,
             "{\"used_bytes\": %zu, \"blocks\": %zu, \"pinned\": %zu, \"captures\": %zu, \"graphs\": %ld,"
             " \"executables\": %ld, \"streams\": %ld, \"events\": %ld, \"strays\": %ld}",
             used, device_memory.size(), host_memory.size(), captures.size(), graphs, executables,
             streams, events, strays);
    return text;
}
