// Declares the part of GIN's device API that emitted sources use, for compilers that have no RCCL. Nothing is defined.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace cuda {
enum memory_order { memory_order_relaxed, memory_order_acquire };
enum thread_scope { thread_scope_system, thread_scope_device, thread_scope_block, thread_scope_thread };
}  // namespace cuda

typedef enum { ncclSuccess = 0, ncclTimeout = 8 } ncclResult_t;
typedef struct ncclWindow_vidmem* ncclWindow_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;

struct ncclDevComm {
    int rank, nRanks;
    uint32_t ginContextCount;
};
struct ncclTeam {
    int nRanks, rank, stride;
};
__device__ ncclTeam ncclTeamWorld(const ncclDevComm&);

struct ncclCoopThread {};
struct ncclGin_None {};
struct ncclGin_WeakSignalInc {
    ncclGinSignal_t signal;
};
struct ncclGin_WeakSignalAdd {
    ncclGinSignal_t signal;
    uint64_t value;
};
struct ncclGin_WeakCounterInc {
    ncclGinCounter_t counter;
};
enum ncclGinOptFlags { ncclGinOptFlagsDefault = 0, ncclGinOptFlagsAggregateRequests = 2 };

struct ncclGin {
    const ncclDevComm& comm;
    __device__ ncclGin(const ncclDevComm&, int context);
    template <typename Remote, typename Local, typename Coop = ncclCoopThread, typename Descriptor = ncclGin_None>
    __device__ void put(
        ncclTeam, int peer, ncclWindow_t to, size_t to_offset, ncclWindow_t from, size_t from_offset, size_t bytes, Remote,
        Local, Coop = Coop(), Descriptor = Descriptor(), cuda::thread_scope given = cuda::thread_scope_thread,
        cuda::thread_scope required = cuda::thread_scope_device, uint32_t flags = ncclGinOptFlagsDefault) const;
    template <typename Coop>
    __device__ ncclResult_t waitSignal(
        Coop, ncclGinSignal_t, uint64_t least, int bits, cuda::memory_order, uint64_t cycles) const;
    template <typename Coop>
    __device__ ncclResult_t waitCounter(
        Coop, ncclGinCounter_t, uint64_t least, int bits, cuda::memory_order, uint64_t cycles) const;
    __device__ uint64_t readSignal(ncclGinSignal_t, int bits, cuda::memory_order = cuda::memory_order_acquire) const;
    __device__ uint64_t readCounter(ncclGinCounter_t, int bits, cuda::memory_order = cuda::memory_order_acquire) const;
};
