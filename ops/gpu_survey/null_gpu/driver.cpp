// The driver, which Triton uses. The libcuda.so.1 that is generated passes its calls on to these functions.
#include "null_gpu.h"
#include <dlfcn.h>

struct CUfunc_st {
  std::string name;
};

CUresult cuDeviceGetName(char *name, int size, CUdevice) {
  return snprintf(name, size, "%s", card_name()), CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute number, CUdevice) {
  return answer(value, attribute(number));
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *flags, int *active) {
  return answer(flags, 0, active, 1);
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule, const char *name) {
  return answer(function, new CUfunc_st{name}); // lives as long as the process, as modules do
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute number, CUfunction) {
  if (number == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK) return answer(value, 1024);
  return answer(value, number == CU_FUNC_ATTRIBUTE_NUM_REGS ? 64 : 0);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **, void **) {
  return count("triton " + function->name, config->hStream);
}
CUresult cuLaunchKernel(CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, CUstream stream, void **, void **) {
  return count("driver " + function->name, stream);
}
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute number, CUdeviceptr pointer) {
  cudaPointerAttributes known;
  cudaPointerGetAttributes(&known, reinterpret_cast<void *>(pointer));
  if (known.type == cudaMemoryTypeUnregistered) return CUDA_ERROR_INVALID_VALUE;
  if (number == CU_POINTER_ATTRIBUTE_DEVICE_POINTER)
    return answer(static_cast<CUdeviceptr *>(value), pointer);
  return answer(static_cast<int *>(value), 0);
}
CUresult cuGetProcAddress_v2(const char *name, void **function, int, cuuint64_t,
                             CUdriverProcAddressQueryResult *result) {
  void *found = dlsym(RTLD_DEFAULT, name);
  if (!found) found = dlsym(RTLD_DEFAULT, (std::string(name) + "_v2").c_str());
  answer(function, found, result, found ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *result) {
  void *found = dlsym(RTLD_DEFAULT, name);
  answer(function, found, result, found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound);
  return found ? cudaSuccess : cudaErrorSymbolNotFound;
}
