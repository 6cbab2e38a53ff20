/* Stands in for libamdhip64.so: HIP 6.3 with two GPUs, whose memory is the host's. */
#include "answer.h"

const char *hipGetErrorString(int error) {
    if (answer("hipGetErrorString")) return NULL;
    switch (error) {
#define E(n, name) \
    case n: return #name;
#include "hip_errors.h"
    }
    return "hipErrorUnknown";
}

CALL(hipInit, (unsigned flags))
CALL(hipGetDeviceCount, (int *count), *count = 2)
CALL(hipSetDevice, (int device), if (device < 0 || device > 1) return 101)
/* The name stands at the start, and that of the architecture at byte 1160. */
CALL(hipGetDevicePropertiesR0600, (char *of, int device), strcpy(of, "AMD stub"), strcpy(of + 1160, "gfx942:xnack-"))
CALL(hipDeviceGetAttribute, (int *value, int of, int device), *value = 304)
CALL(hipDeviceGetPCIBusId, (char *text, int length, int device), snprintf(text, length, "0000:%02x:00.0", device + 1))
CALL(hipDeviceTotalMem, (size_t *bytes, int device), *bytes = 1 << 30)
CALL(hipDriverGetVersion, (int *version), *version = 60342131)
CALL(hipDeviceCanAccessPeer, (int *can, int device, int peer), *can = 1)
CALL(hipDeviceEnablePeerAccess, (int peer, unsigned flags))
CALL(hipExtGetLinkTypeAndHopCount, (int device, int peer, unsigned *link, unsigned *hops), *link = 4, *hops = 1)
CALL(hipMemcpyPeerAsync, (P to, int in, P from, int out, size_t bytes, P stream), memcpy(to, from, bytes))
CALL(hipDeviceSynchronize, (void))
CALL(hipMalloc, (P *ptr, size_t bytes), *ptr = calloc(1, bytes))
CALL(hipExtMallocWithFlags, (P *ptr, size_t bytes, unsigned flags), *ptr = calloc(1, bytes))
CALL(hipFree, (P ptr), free(ptr))
CALL(hipHostRegister, (P first, size_t bytes, unsigned flags), (void)first; (void)bytes; (void)flags)
CALL(hipHostGetDevicePointer, (P *ptr, P first, unsigned flags), *ptr = first; (void)flags)
CALL(hipHostUnregister, (P first), (void)first)
CALL(hipMemcpyHtoD, (P to, P from, size_t bytes), memcpy(to, from, bytes))
CALL(hipMemcpyDtoH, (P to, P from, size_t bytes), memcpy(to, from, bytes))
CALL(hipMemsetD8Async, (P to, unsigned char value, size_t bytes, P stream), memset(to, value, bytes))
typedef struct { P ptr, rest[7]; } Ipc;
CALL(hipIpcGetMemHandle, (Ipc *handle, P ptr), handle->ptr = ptr)
CALL(hipIpcOpenMemHandle, (P *ptr, Ipc handle, unsigned flags), *ptr = handle.ptr)
CALL(hipIpcCloseMemHandle, (P ptr))
CALL(hipModuleLoadData, (P *module, const void *image), *module = HANDLE)
CALL(hipModuleUnload, (P module))
CALL(hipModuleGetFunction, (P *function, P module, const char *name), *function = HANDLE)
CALL(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, P of, int threads, size_t shared), *blocks = 1)
CALL(hipModuleLaunchKernel, (P function))
CALL(hipModuleLaunchCooperativeKernel, (P function))
CALL(hipStreamCreateWithFlags, (P *stream, unsigned flags), *stream = HANDLE)
CALL(hipStreamDestroy, (P stream))
CALL(hipStreamQuery, (P stream))
CALL(hipStreamSynchronize, (P stream))
CALL(hipEventCreate, (P *event), *event = HANDLE)
CALL(hipEventDestroy, (P event))
CALL(hipEventRecord, (P event, P stream))
CALL(hipEventElapsedTime, (float *milliseconds, P start, P end), *milliseconds = 1)
CALL(hipStreamBeginCapture, (P stream, int mode))
CALL(hipStreamEndCapture, (P stream, P *graph), *graph = HANDLE)
CALL(hipGraphInstantiateWithFlags, (P *ready, P graph, U64 flags), *ready = HANDLE)
CALL(hipGraphLaunch, (P ready, P stream))
CALL(hipGraphDestroy, (P graph))
CALL(hipGraphExecDestroy, (P ready))
