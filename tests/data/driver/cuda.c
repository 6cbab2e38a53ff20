/* Stands in for libcuda.so.1: a driver with two GPUs, whose memory is the host's. It has no call that came after CUDA 12.4. */
#include "answer.h"

static const char *name_of(int error) {
    switch (error) {
#define E(n, name) \
    case n: return #name;
#include "cuda_errors.h"
    }
    return NULL;
}

CALL(cuGetErrorName, (int error_, const char **text), if (!(*text = name_of(error_))) return 1)
CALL(cuGetErrorString, (int error_, const char **text), if (!name_of(error_)) return 1; *text = "words of the driver")
/* The version of CUDA that the driver supports. */
int stub_version = 13000;
CALL(cuDriverGetVersion, (int *version), *version = stub_version)
CALL(cuInit, (unsigned flags))
CALL(cuDeviceGetCount, (int *count), *count = 2)
CALL(cuDeviceGet, (int *device, int ordinal), if (ordinal < 0 || ordinal > 1) return 101; *device = ordinal)
CALL(cuDeviceGetName, (char *name, int length, int device), snprintf(name, length, "NVIDIA H100 stub"))
CALL(cuDeviceGetPCIBusId, (char *text, int length, int device), snprintf(text, length, "0000:%02x:00.0", device + 1))
CALL(cuDeviceTotalMem_v2, (size_t *bytes, int device), *bytes = 1 << 30)
/* 75 and 76 are the compute capability, 16 the SMs; all that is asked else is yes or no. */
CALL(cuDeviceGetAttribute, (int *value, int of, int device), *value = of == 75 ? 9 : of == 76 ? 0 : of == 16 ? 132 : 1)
CALL(cuDeviceGetP2PAttribute, (int *value, int of, int from, int to), *value = 1)
CALL(cuDeviceCanAccessPeer, (int *can, int device, int peer), *can = 1)
CALL(cuDevicePrimaryCtxRetain, (P *context, int device), *context = HANDLE)
CALL(cuDevicePrimaryCtxRelease_v2, (int device))
CALL(cuCtxSetCurrent, (P context))
CALL(cuCtxEnablePeerAccess, (P peer, unsigned flags))
CALL(cuCtxSynchronize, (void))

CALL(cuMemAlloc_v2, (U64 *ptr, size_t bytes), *ptr = (U64)calloc(1, bytes))
CALL(cuMemFree_v2, (U64 ptr), free((P)ptr))
CALL(cuMemHostRegister_v2, (void *first, size_t bytes, unsigned flags), (void)first; (void)bytes; (void)flags)
CALL(cuMemHostGetDevicePointer_v2, (U64 *ptr, void *first, unsigned flags), *ptr = (U64)(uintptr_t)first; (void)flags)
CALL(cuMemHostUnregister, (void *first), (void)first)
CALL(cuMemcpyHtoD_v2, (U64 to, const void *from, size_t bytes), memcpy((P)to, from, bytes))
CALL(cuMemcpyDtoH_v2, (P to, U64 from, size_t bytes), memcpy(to, (P)from, bytes))
CALL(cuMemcpyPeerAsync, (U64 to, P in, U64 from, P out, size_t bytes, P stream), memcpy((P)to, (P)from, bytes))
CALL(cuMemsetD8Async, (U64 to, unsigned char value, size_t bytes, P stream), memset((P)to, value, bytes))
CALL(cuMemGetAllocationGranularity, (size_t *bytes, const void *of, int option), *bytes = 4096)
CALL(cuMemCreate, (U64 *handle, size_t bytes, const void *of, U64 flags), *handle = 1)
CALL(cuMemRelease, (U64 handle))
CALL(cuMemAddressReserve, (U64 *ptr, size_t bytes, size_t to, U64 at, U64 flags), *ptr = (U64)calloc(1, bytes))
CALL(cuMemAddressFree, (U64 ptr, size_t bytes), free((P)ptr))
CALL(cuMemMap, (U64 ptr, size_t bytes, size_t from, U64 handle, U64 flags))
CALL(cuMemUnmap, (U64 ptr, size_t bytes))
CALL(cuMemSetAccess, (U64 ptr, size_t bytes, const void *of, size_t count))
CALL(cuMemRetainAllocationHandle, (U64 *handle, P ptr), *handle = 1)
CALL(cuMemExportToShareableHandle, (int *fd, U64 handle, int kind, U64 flags), *fd = open("/dev/null", O_CLOEXEC))
CALL(cuMemImportFromShareableHandle, (U64 *handle, P fd, int kind), *handle = 1)
typedef struct { U64 ptr, rest[7]; } Ipc;
CALL(cuIpcGetMemHandle, (Ipc *handle, U64 ptr), handle->ptr = ptr)
CALL(cuIpcOpenMemHandle_v2, (U64 *ptr, Ipc handle, unsigned flags), *ptr = handle.ptr)
CALL(cuIpcCloseMemHandle, (U64 ptr))

CALL(cuModuleLoadData, (P *module, const void *image), *module = HANDLE)
CALL(cuModuleUnload, (P module))
CALL(cuModuleGetFunction, (P *function, P module, const char *name), *function = HANDLE)
CALL(cuFuncLoad, (P function))
CALL(cuFuncSetAttribute, (P function, int of, int value))
CALL(cuFuncGetAttribute, (int *value, int of, P function), *value = 1)
CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, P function, int threads, size_t shared), *blocks = 1)
CALL(cuOccupancyMaxActiveClusters, (int *clusters, P function, const void *config), *clusters = 1024)
CALL(cuTensorMapEncodeTiled, (P map, int dtype, unsigned rank, P at, const void *sizes))
CALL(cuLaunchKernelEx, (const void *config, P function, P *parameters, P *extra))
CALL(cuStreamCreate, (P *stream, unsigned flags), *stream = HANDLE)
CALL(cuStreamDestroy_v2, (P stream))
CALL(cuStreamQuery, (P stream))
CALL(cuStreamSynchronize, (P stream))
CALL(cuStreamBeginCapture_v2, (P stream, int mode))
CALL(cuStreamEndCapture, (P stream, P *graph), *graph = HANDLE)
CALL(cuEventCreate, (P *event, unsigned flags), *event = HANDLE)
CALL(cuEventDestroy_v2, (P event))
CALL(cuEventRecord, (P event, P stream))
CALL(cuEventElapsedTime, (float *milliseconds, P start, P end), *milliseconds = 1)
CALL(cuGraphInstantiateWithFlags, (P *ready, P graph, U64 flags), *ready = HANDLE)
CALL(cuGraphDestroy, (P graph))
CALL(cuGraphLaunch, (P ready, P stream))
CALL(cuGraphExecDestroy, (P ready))
