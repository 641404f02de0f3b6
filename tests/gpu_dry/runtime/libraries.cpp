// cuBLAS, cuBLASLt and cuDNN in software: each call that would launch kernels is one operation.
//
// Real stays what needs no device: versions, error texts, descriptors of tensors. cuBLAS's functions
// take what they do not look at as variable arguments.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))
extern "C" int dry_put(void* stream, const char* what);

namespace {

struct Handle {
    cudaStream_t stream = nullptr;
};

const int CUBLAS_FAILED = 13;  // CUBLAS_STATUS_EXECUTION_FAILED

}  // namespace

#define SUCCEEDS(name) \
    API int name(...) { return 0; }
#define MAKES(name)                                           \
    API int name(void** made, ...) {                          \
        return *made = calloc(1, 256), *made ? 0 : CUBLAS_FAILED; \
    }
#define FREES(name) \
    API int name(void* made) { return free(made), 0; }
#define LAUNCHES(name) \
    API int name(Handle* handle, ...) { return dry_put(handle->stream, #name) ? CUBLAS_FAILED : 0; }

// cuBLAS

API int cublasCreate_v2(Handle** handle) { return *handle = new Handle, 0; }
API int cublasDestroy_v2(Handle* handle) { return delete handle, 0; }
API int cublasSetStream_v2(Handle* handle, cudaStream_t stream) { return handle->stream = stream, 0; }
API int cublasGetMathMode(Handle*, int* mode) { return *mode = 0, 0; }
API int cublasGetPointerMode_v2(Handle*, int* mode) { return *mode = 0, 0; }
SUCCEEDS(cublasSetWorkspace_v2)
SUCCEEDS(cublasSetMathMode)
SUCCEEDS(cublasSetPointerMode_v2)
LAUNCHES(cublasSgemm_v2)
LAUNCHES(cublasSgemmEx)
LAUNCHES(cublasGemmEx)
LAUNCHES(cublasSgemmStridedBatched)
LAUNCHES(cublasGemmStridedBatchedEx)
LAUNCHES(cublasSgemv_v2)
LAUNCHES(cublasSdot_v2)

// cuBLASLt

MAKES(cublasLtMatmulDescCreate)
FREES(cublasLtMatmulDescDestroy)
SUCCEEDS(cublasLtMatmulDescSetAttribute)
MAKES(cublasLtMatrixLayoutCreate)
FREES(cublasLtMatrixLayoutDestroy)
SUCCEEDS(cublasLtMatrixLayoutSetAttribute)
MAKES(cublasLtMatmulPreferenceCreate)
FREES(cublasLtMatmulPreferenceDestroy)
SUCCEEDS(cublasLtMatmulPreferenceSetAttribute)
API int cublasLtMatmulAlgoGetHeuristic(
    void*, void*, void*, void*, void*, void*, void*, int, void* result, int* count) {
    return memset(result, 0, 96), *count = 1, 0;
}
API int cublasLtMatmul(
    void*, void*, const void*, const void*, void*, const void*, void*, const void*, const void*, void*,
    void*, void*, const void*, void*, size_t, cudaStream_t stream) {
    return dry_put(stream, "cublasLtMatmul") ? CUBLAS_FAILED : 0;
}

// cuDNN: one engine for every graph of operations, with a workspace

API cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    *handle = reinterpret_cast<cudnnHandle_t>(new Handle);
    return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    return reinterpret_cast<Handle*>(handle)->stream = stream, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
    return *stream = reinterpret_cast<Handle*>(handle)->stream, CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendCreateDescriptor(
    cudnnBackendDescriptorType_t, cudnnBackendDescriptor_t* descriptor) {
    return *descriptor = calloc(1, 64), CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    return free(descriptor), CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendSetAttribute(
    cudnnBackendDescriptor_t, cudnnBackendAttributeName_t, cudnnBackendAttributeType_t, int64_t,
    const void*) {
    return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }
API cudnnStatus_t cudnnBackendGetAttribute(
    cudnnBackendDescriptor_t, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t,
    int64_t room, int64_t* count, void* values) {
    const int64_t WORKSPACE_BYTES = 3 << 20;
    int64_t number = 0, there = 1;
    bool is_number = true;
    switch (name) {
        case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: break;
        case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: number = 1; break;
        case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: number = WORKSPACE_BYTES; break;
        case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        case CUDNN_ATTR_ENGINECFG_ENGINE:
        case CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: is_number = false; break;
        default: is_number = false, there = 0;
    }
    if (is_number && values && room) *static_cast<int64_t*>(values) = number;
    if (count) *count = there;
    return CUDNN_STATUS_SUCCESS;
}
static cudnnStatus_t launched(cudnnHandle_t handle, const char* what) {
    int error = dry_put(reinterpret_cast<Handle*>(handle)->stream, what);
    return error ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendExecute(
    cudnnHandle_t handle, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
    return launched(handle, "cudnnBackendExecute");
}
API cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t, const void*, const void*, const cudnnTensorDescriptor_t,
    const void*, const cudnnTensorDescriptor_t, void*, const cudnnTensorDescriptor_t, const void*,
    const void*, const void*, const void*, double) {
    return launched(handle, "cudnnBatchNormalizationForwardInference");
}
