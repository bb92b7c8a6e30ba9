// Entry points whose answer is always the same. With C linkage it does not matter with how many arguments
// they are called, so their declarations are left out, and with them CUDA's headers.
#include <cstddef>
#include <cstdint>

enum { SUCCESS = 0, INVALID_VALUE = 1, CUDA_VERSION = 13000 };
static char context, module, pool; // what handles of them point to

// clang-format off
#define RETURNS(error, name) extern "C" int name() { return error; }
#define SUCCEEDS(name) RETURNS(SUCCESS, name)
// ... are the types of the parameters, of which the last is where the answer goes.
#define ANSWERS(value, name, ...) \
  extern "C" int name(__VA_ARGS__ place) { if (place) *place = value; return SUCCESS; }

// The device
SUCCEEDS(cudaSetDevice) SUCCEEDS(cudaDeviceEnablePeerAccess)
SUCCEEDS(cudaProfilerStart) SUCCEEDS(cudaProfilerStop)
ANSWERS(0, cudaGetDevice, int *) ANSWERS(1, cudaGetDeviceCount, int *)
ANSWERS(0, cudaDeviceCanAccessPeer, int *)
ANSWERS(CUDA_VERSION, cudaDriverGetVersion, int *) ANSWERS(CUDA_VERSION, cudaRuntimeGetVersion, int *)

// Memory
SUCCEEDS(cudaMemcpyToSymbol) ANSWERS(&pool, cudaDeviceGetDefaultMemPool, void **)
SUCCEEDS(cudaMemPoolSetAttribute) ANSWERS(0, cudaMemPoolGetAttribute, void *, int, uint64_t *)
SUCCEEDS(cudaMemPoolSetAccess) SUCCEEDS(cudaMemPoolTrimTo)

// Streams and graphs
SUCCEEDS(cudaStreamDestroy) SUCCEEDS(cudaStreamWaitEvent) ANSWERS(0, cudaStreamGetPriority, void *, int *)
SUCCEEDS(cudaGraphDestroy) SUCCEEDS(cudaGraphExecDestroy) SUCCEEDS(cudaGraphDebugDotPrint)
ANSWERS(0, cudaGraphNodeGetDependencies, void *, void *, void *, size_t *)

// Kernels
SUCCEEDS(__cudaRegisterFatBinaryEnd) SUCCEEDS(__cudaUnregisterFatBinary) SUCCEEDS(__cudaRegisterVar)
SUCCEEDS(cudaFuncSetAttribute) ANSWERS(2, cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, int *)

// The driver
SUCCEEDS(cuInit) ANSWERS(CUDA_VERSION, cuDriverGetVersion, int *)
ANSWERS("null driver error", cuGetErrorString, int, const char **)
ANSWERS("CUDA_ERROR_NULL", cuGetErrorName, int, const char **)
ANSWERS(0, cuDeviceGet, int *) ANSWERS(1, cuDeviceGetCount, int *)
ANSWERS(&context, cuDevicePrimaryCtxRetain, void **) SUCCEEDS(cuDevicePrimaryCtxRelease_v2)
ANSWERS(&context, cuCtxGetCurrent, void **) SUCCEEDS(cuCtxSetCurrent) ANSWERS(0, cuCtxGetDevice, int *)
ANSWERS(&context, cuCtxPopCurrent_v2, void **) SUCCEEDS(cuCtxPushCurrent_v2)
ANSWERS(1 << 20, cuCtxGetLimit, size_t *) SUCCEEDS(cuCtxSetLimit)
ANSWERS(&module, cuModuleLoad, void **) ANSWERS(&module, cuModuleLoadData, void **)
ANSWERS(&module, cuModuleLoadDataEx, void **) SUCCEEDS(cuModuleUnload)
SUCCEEDS(cuLinkCreate_v2) SUCCEEDS(cuLinkAddData_v2) SUCCEEDS(cuLinkComplete)
SUCCEEDS(cuFuncSetAttribute) SUCCEEDS(cuFuncSetCacheConfig) SUCCEEDS(cuLaunchCooperativeKernel)
ANSWERS(1, cuOccupancyMaxActiveClusters, int *)
ANSWERS(1, cuOccupancyMaxActiveBlocksPerMultiprocessor, int *)
SUCCEEDS(cuTensorMapEncodeTiled) SUCCEEDS(cuStreamGetCaptureInfo)
RETURNS(INVALID_VALUE, cuPointerGetAttributes)
