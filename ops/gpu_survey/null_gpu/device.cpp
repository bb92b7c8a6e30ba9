// The device's properties, which are an H100's, and errors.
#include "null_gpu.h"
#include <cstdint>
#include <cstring>

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) { return last_error = error; }

const char *card_name() {
  const char *name = getenv("NULL_GPU_NAME");
  return name ? name : "NVIDIA H100 80GB HBM3";
}

// clang-format off
#define FACTS(FACT) /* attribute, field of cudaDeviceProp, value of both; sizes in bytes */ \
  FACT(ComputeCapabilityMajor, major, 9) FACT(ComputeCapabilityMinor, minor, 0) \
  FACT(MultiProcessorCount, multiProcessorCount, 132) FACT(WarpSize, warpSize, 32) \
  FACT(GlobalMemoryBusWidth, memoryBusWidth, 5120) FACT(L2CacheSize, l2CacheSize, 50 << 20) \
  FACT(MaxGridDimX, maxGridSize[0], INT32_MAX) FACT(MaxBlockDimX, maxThreadsDim[0], 1024) \
  FACT(MaxGridDimY, maxGridSize[1], UINT16_MAX) FACT(MaxBlockDimY, maxThreadsDim[1], 1024) \
  FACT(MaxGridDimZ, maxGridSize[2], UINT16_MAX) FACT(MaxBlockDimZ, maxThreadsDim[2], 64) \
  FACT(MaxThreadsPerBlock, maxThreadsPerBlock, 1024) \
  FACT(MaxThreadsPerMultiProcessor, maxThreadsPerMultiProcessor, 2048) \
  FACT(MaxBlocksPerMultiprocessor, maxBlocksPerMultiProcessor, 32) \
  FACT(MaxRegistersPerBlock, regsPerBlock, 65'536) \
  FACT(MaxRegistersPerMultiprocessor, regsPerMultiprocessor, 65'536) \
  FACT(MaxSharedMemoryPerBlock, sharedMemPerBlock, 48 << 10) \
  FACT(MaxSharedMemoryPerBlockOptin, sharedMemPerBlockOptin, 227 << 10) \
  FACT(MaxSharedMemoryPerMultiprocessor, sharedMemPerMultiprocessor, 228 << 10) \
  FACT(ReservedSharedMemoryPerBlock, reservedSharedMemPerBlock, 1 << 10)
#define TO_CASE(name, field, value) case cudaDevAttr##name: return value;
#define TO_FIELD(name, field, value) properties->field = value;
// clang-format on

int attribute(int number) {
  switch (number) {
    FACTS(TO_CASE)
  case cudaDevAttrClockRate: return 1'980'000;       // kHz
  case cudaDevAttrMemoryClockRate: return 2'619'000; // kHz
  default: return 1;                                 // most of the others are abilities, which it has
  }
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr number, int) {
  return answer(value, attribute(number));
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int) {
  return snprintf(id, size, "0000:00:00.0"), cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  *properties = {};
  strncpy(properties->name, card_name(), sizeof properties->name - 1);
  properties->totalGlobalMem = total_bytes;
  FACTS(TO_FIELD)
  properties->unifiedAddressing = properties->concurrentKernels = properties->cooperativeLaunch = 1;
  properties->asyncEngineCount = 3;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "no error";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
  case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
  default: return "null gpu error";
  }
}
const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "cudaSuccess";
  case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
  default: return "cudaErrorNull";
  }
}
