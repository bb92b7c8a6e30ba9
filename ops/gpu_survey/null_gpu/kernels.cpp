// Kernels that nvcc has compiled. The code that it generates registers each with its name and the address of
// a function on the host, by which it is launched. No header declares the functions that begin with __.
#include "null_gpu.h"
#include <unordered_map>

static std::unordered_map<const void *, std::string> names;
static thread_local struct {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
} next_launch;

static cudaError_t launch(const void *function, cudaStream_t stream) {
  auto found = names.find(function);
  return count(found == names.end() ? "?" : found->second, stream);
}

extern "C" {
void **__cudaRegisterFatBinary(void *) {
  static void *handle;
  return &handle;
}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterFunction(void **, const char *function, char *, const char *mangled, int, void *, void *,
                            void *, void *, int *) {
  const std::string name = mangled, native = "at6native"; // torch's namespace
  size_t found = name.find(native);
  const size_t begin = found == name.npos ? 0 : found + native.size(), readable = 90;
  names[function] = name.substr(begin, readable);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream) {
  next_launch = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, cudaStream_t *stream) {
  auto &[its_grid, its_block, its_bytes, its_stream] = next_launch;
  return answer(grid, its_grid, block, its_block, shared_bytes, its_bytes, stream, its_stream);
}
cudaError_t __cudaGetKernel(const void **kernel, const void *function) { return answer(kernel, function); }
cudaError_t __cudaLaunchKernel(const void *kernel, dim3, dim3, void **, size_t, cudaStream_t stream) {
  return launch(kernel, stream);
}
}

cudaError_t cudaLaunchKernel(const void *function, dim3, dim3, void **, size_t, cudaStream_t stream) {
  return launch(function, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *launched, const void *function, void **) {
  return launch(function, launched->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  *attributes = {};
  attributes->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
  attributes->maxDynamicSharedSizeBytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}
