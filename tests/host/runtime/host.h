// What an emitted kernel meets when it runs on the CPU. The preludes (cuda/cuda_runtime.h, hip/hip_runtime.h) put the
// names of CUDA and HIP on top of this; order.h says what each operation orders.
#pragma once

#include <cstdint>

// Inlined, so that an address in it is in the kernel's code and names the kernel's line.
#define PEERWARP_INLINE inline __attribute__((always_inline))

namespace host {

using u32 = std::uint32_t;
using u64 = std::uint64_t;
using u128 = unsigned __int128;

// Which threads an atomic or a fence is for, from the narrowest to the widest.
enum class Scope : unsigned char { Warp, Block, Gpu, System };
enum class Order : unsigned char { Relaxed, Acquire, Release, AcqRel };

// ---- Where a thread is

struct Index {
    u32 x;
};
Index thread_index();
Index block_index();
u32 lane();  // in its warp

// ---- Meetings. All lanes of the warp, or the given number of threads, have to come.

u64 shuffle(u64 bits, u32 from);  // the bits that lane `from` brought
// What all lanes brought, so many words each, one lane after the other: there until the lanes meet again.
const u64* exchange(const u64* mine, u32 words);
u64 ballot(bool mine);            // a bit for each lane
void warp_sync();                 // orders memory among the warp's lanes
// The barrier of the block with this number: orders memory among those that come, tells whether all said `mine`.
bool barrier(u32 number, u32 threads, bool mine);
u32 block_threads();

// AMD: these order nothing by themselves, the fences around them do.
void wave_barrier();
void block_barrier();
// AMD: all stores of this thread have been performed.
void stores_done();

void fence(Order order, Scope scope);

// ---- Copies that go on while the thread does: of each thread for itself

void copy_later(void* to, const void* from, u32 bytes, u32 room);  // to shared memory; zeros follow the bytes
void copies_group();                                     // those since the last time are a group
void copies_done_but(u32 most);                          // all groups but the newest
void copies_done();                                      // all of them
void bulk_copy(void* to, const void* from, u32 bytes);   // from shared memory
void bulk_commit();                                      // those since the last time are waited for from here on
void bulk_read();                                        // what they copy has been read
void bulk_done();                                        // and is there

// ---- Boxes of matrices that come by themselves, and the mbarriers that count them

void barrier_begin(const void* barrier, u32 arrivals);
void barrier_arrive(const void* barrier, u32 bytes);  // and so many bytes are to come
void barrier_expect(const void* barrier, u32 bytes);  // so many bytes are to come before it
bool barrier_wait(const void* barrier, u32 parity);   // until a phase of this parity has ended
bool barrier_test(const void* barrier, u32 parity);   // whether it has
void bring_box(void* to, const void* map, u32 column, u32 row, const void* barrier);
void bring_bytes(void* to, const void* from, u32 bytes, const void* barrier);

// The same where the box, or the barrier, may be the other block's of a pair.
void bring_box_in_pair(void* to, const void* map, u32 column, u32 row, const void* barrier);
PEERWARP_INLINE void bring_box_in_pair(void* to, const void* map, u32 column, u32 row, u64 barrier) {
    bring_box_in_pair(to, map, column, row, reinterpret_cast<const void*>(barrier));
}

// ---- Pairs: blocks 2i and 2i + 1 are a cluster

u64 in_block_of_pair(const void* here, u32 number);  // where that block has what this one has here
void pair_arrive();                                  // all threads of both do, and wait for all
void pair_wait();
void barrier_arrive_in_pair(u64 barrier);
void is_in_pair(u64 at);  // shared memory of a block that has not ended
PEERWARP_INLINE u32 load_in_pair(const u64 from) {
    is_in_pair(from);
    return *reinterpret_cast<const u32*>(from);
}

// ---- Products of matrices that go on while the thread does

// Of elements of so many bytes, in the lowest bits of a word.
void products_later(float (*to)(u32), u32 bytes, u64 a, u64 b, float* const* sums, u32 count);
void products_group();               // those since the last time are a group
void products_done_but(u32 most);    // all groups but the newest

// ---- Tensor memory: what it orders, tensor.h says

// For a group of so many blocks, one or a pair: all of a kernel's instructions are for the same.
void tensor_take(u32 group, void* to, u32 columns);   // by a warp, like the next ones
void tensor_relinquish(u32 group);
void tensor_give(u32 group, u32 first, u32 columns);
void tensor_load_all(u32 at, float* const* to, u32 count);
void tensor_loads_done();
// By one thread, like the next ones: kind::f16, or kind::f8f6f4.
void tensor_multiply(u32 group, bool is_f16, u32 sums, u64 a, u64 b, u32 word, bool add);
// kind::mxf8f6f4, or kind::mxf4nvf4.
void tensor_multiply_scaled(bool is_mx, u32 sums, u64 a, u64 b, u32 word, u32 a_scales, u32 b_scales, bool add);
void tensor_copy_scales(u32 to, u64 from);
void tensor_commit(const void* barrier);
void tensor_commit_in_pair(const void* barrier, u32 blocks);  // at those of a mask
void tensor_fence_before();
void tensor_fence_after();

// ---- Where the launch's arguments are

const void* kernel_arguments();

// ---- All ranks' memory at once: a pointer to it is one into rank 0's instance

u32 world_ranks();
void* instance(const void* everyone, u32 rank);

// ---- Time

u64 now_ns();
void pause();  // somebody else's turn

// ---- Shared memory

void* dynamic_shared();
void* static_shared(u32 offset);
u32 place_shared(u32 bytes, u32 align);  // before main: where a variable is in each block's memory

// A `__shared__` variable: `Tag` is a type of its own for each variable of each instantiation.
template <typename Tag, typename Array>
struct SharedPlace {
    static const u32 offset;
};
template <typename Tag, typename Array>
const u32 SharedPlace<Tag, Array>::offset = place_shared(sizeof(Array), alignof(Array));

template <typename Tag, typename Array>
Array& shared() {
    return *static_cast<Array*>(static_shared(SharedPlace<Tag, Array>::offset));
}

// ---- Atomics

enum class Access : unsigned char { Load, Store, Update };
// Waits for its turn, checks and orders an atomic access that is then made by the two below.
void atomic(const void* p, u32 bytes, Access access, Order order, Scope scope);
void raw_read(void* to, const void* from, u32 bytes);
void raw_write(void* to, const void* from, u32 bytes);

template <typename T>
struct Same {
    using type = T;
};
template <typename T>
using Value = typename Same<T>::type;  // takes no part in deduction

template <typename T>
PEERWARP_INLINE T atomic_load(const T* p, Order order, Scope scope) {
    atomic(p, sizeof(T), Access::Load, order, scope);
    T value;
    raw_read(&value, p, sizeof(T));
    return value;
}

template <typename T>
PEERWARP_INLINE void atomic_store(T* p, Value<T> value, Order order, Scope scope) {
    atomic(p, sizeof(T), Access::Store, order, scope);
    raw_write(p, &value, sizeof(T));
}

// Replaces the value by what `next` makes of it; returns the old one.
template <typename T, typename Next>
PEERWARP_INLINE T atomic_update(T* p, Order order, Scope scope, Next next) {
    atomic(p, sizeof(T), Access::Update, order, scope);
    T old;
    raw_read(&old, p, sizeof(T));
    const T value = next(old);
    raw_write(p, &value, sizeof(T));
    return old;
}

// ---- Kernels

// Registers an emitted kernel: `run` calls it with the argument struct.
struct Kernel {
    Kernel(const char* name, void (*run)(const void*), u32 args_bytes);
    const char* name;
    void (*run)(const void*);
    u32 args_bytes;
    Kernel* next;
};

template <typename To, typename From>
To bits_of(const From& x) {
    static_assert(sizeof(From) <= sizeof(To), "fits");
    To out = 0;
    __builtin_memcpy(&out, &x, sizeof(From));
    return out;
}

template <typename To>
To from_bits(const u64 bits) {
    To out;
    __builtin_memcpy(&out, &bits, sizeof(To));
    return out;
}

}  // namespace host
