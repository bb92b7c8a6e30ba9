// What the files of the null GPU share. CUDA's headers declare the entry points, so that these need no
// extern "C" and a wrong argument does not compile. They leave the structs behind CUDA's handles to the
// library: cudaStream_t is a CUstream_st *, and so on. The library exports nothing but entry points.
#pragma once
#include <cstdlib>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <string>
#include <utility>

struct Success { // in the terms of the runtime and of the driver
  operator cudaError_t() const { return cudaSuccess; }
  operator CUresult() const { return CUDA_SUCCESS; }
};

inline Success answer() { return {}; }
// Stores values: answer(place, value, place, value, ...). What a null pointer asks for is left out.
template <class Place, class Value, class... More> Success answer(Place *place, Value value, More... more) {
  if (place) *place = value;
  return answer(more...);
}

// streams.cpp
Success count(const std::string &kernel, cudaStream_t stream); // a launch, or a node of the graph in capture
bool is_capturing(cudaStream_t stream);
cudaError_t break_capture(cudaStream_t stream, const std::string &why); // returns the error
cudaError_t not_in_capture(const std::string &operation); // breaks the capture that runs, if one does

// memory.cpp
extern const size_t total_bytes;
extern size_t peak_bytes;

// device.cpp
const char *card_name();
int attribute(int number);           // a cudaDeviceAttr or a CUdevice_attribute: they have the same numbers
cudaError_t fail(cudaError_t error); // returns it, and cudaGetLastError will
