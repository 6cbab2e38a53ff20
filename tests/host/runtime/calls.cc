// What emitted kernels call: the names that the preludes use, and the functions of the compiler's instrumentation.
#include <cstring>

#include "machine.h"

namespace host {

#define HERE Site(u64(__builtin_return_address(0)))

Index thread_index() { return {me->in_block}; }
Index block_index() { return {me->home->index}; }
u32 lane() { return me->lane; }
u32 block_threads() { return u32(me->home->threads.size()); }
void* dynamic_shared() { return me->home->dynamic_shared; }
void* static_shared(const u32 offset) { return me->home->static_shared + offset; }
u64 now_ns() { return machine->now(); }
const void* kernel_arguments() { return machine->arguments(); }
u32 world_ranks() { return machine->world_ranks(); }
void* instance(const void* const everyone, const u32 rank) { return machine->instance(everyone, rank); }
void pause() {}

u64 shuffle(const u64 bits, const u32 from) { return machine->meet(Meeting::Shuffle, bits, from, HERE); }
const u64* exchange(const u64* const mine, const u32 words) {
    return reinterpret_cast<const u64*>(machine->meet(Meeting::Exchange, reinterpret_cast<u64>(mine), words, HERE));
}
u64 ballot(const bool mine) { return machine->meet(Meeting::Ballot, mine, 0, HERE); }
void warp_sync() { machine->meet(Meeting::Sync, 0, 0, HERE); }
void wave_barrier() { machine->meet(Meeting::WaveBarrier, 0, 0, HERE); }
void end_run() { machine->end_run(); }
bool barrier(const u32 number, const u32 threads, const bool mine) { return machine->meet_at(number, threads, mine, HERE); }
void block_barrier() { machine->meet_block(HERE); }
void stores_done() {
    if (machine->checks()) me->performed();
}
void fence(const Order order, const Scope scope) { machine->fence(order, scope, HERE); }
void atomic(const void* p, u32 bytes, Access access, Order order, Scope scope) {
    machine->atomic(p, bytes, access, order, scope, HERE);
}
void copy_later(void* to, const void* from, const u32 bytes, const u32 room) {
    me->copies.later(to, from, bytes, room, HERE);
}
void products_later(float (*const to)(u32), const u32 bytes, const u64 a, const u64 b, float* const* const sums,
                    const u32 count) {
    me->products.later(to, bytes, a, b, {sums, sums + count}, HERE);
}
void products_group() { me->products.group(); }
// All lanes of a warp do this together (`.sync.aligned`): none goes on before the last has read what it multiplies.
void products_done_but(const u32 most) {
    me->products.done_but(*me, me->in_block, me->home->dynamic_shared, most);
    machine->meet(Meeting::Sync, 0, 0, HERE);
}
// Lanes of a warp do the first five together, which orders nothing.
void tensor_take(const u32 group, void* const to, const u32 columns) {
    machine->meet(Meeting::Ballot, 1, 0, HERE);
    machine->tensors().take(group, to, columns, HERE);
}
void tensor_relinquish(const u32 group) {
    machine->meet(Meeting::Ballot, 1, 0, HERE);
    machine->tensors().relinquish(group, HERE);
}
void tensor_give(const u32 group, const u32 first, const u32 columns) {
    machine->meet(Meeting::Ballot, 1, 0, HERE);
    machine->tensors().give(group, first, columns, HERE);
}
void tensor_load_all(const u32 at, float* const* const to, const u32 count) {
    machine->meet(Meeting::Ballot, 1, 0, HERE);
    machine->tensors().load(at, to, count, HERE);
}
void tensor_loads_done() {
    machine->meet(Meeting::Ballot, 1, 0, HERE);
    machine->tensors().loads_done();
}
void tensor_multiply(const u32 group, const bool is_f16, const u32 sums, const u64 a, const u64 b, const u32 word, const bool add) {
    machine->tensors().multiply(group, is_f16 ? ProductKind::F16 : ProductKind::F8f6f4, sums, a, b, word, add, HERE);
}
void tensor_multiply_scaled(const bool is_mx, const u32 sums, const u64 a, const u64 b, const u32 word, const u32 a_scales,
                            const u32 b_scales, const bool add) {
    const ScaledKind kind = is_mx ? ScaledKind::Mxf8f6f4 : ScaledKind::Mxf4nvf4;
    machine->tensors().multiply_scaled(kind, sums, a, b, word, a_scales, b_scales, add, HERE);
}
void tensor_copy_scales(const u32 to, const u64 from) { machine->tensors().copy_scales(to, from, HERE); }
void tensor_commit(const void* const barrier) { machine->tensors().commit(1, barrier, 0, HERE); }
void tensor_commit_in_pair(const void* const barrier, const u32 blocks) { machine->tensors().commit(2, barrier, blocks, HERE); }
void tensor_fence_before() { machine->tensors().fence_before(); }
void tensor_fence_after() { machine->tensors().fence_after(); }
void barrier_begin(const void* const barrier, const u32 arrivals) {
    machine->boxes().begin_barrier(barrier, arrivals, HERE);
}
void barrier_arrive(const void* const barrier, const u32 bytes) { machine->boxes().arrive(barrier, bytes, HERE); }
void barrier_expect(const void* const barrier, const u32 bytes) { machine->boxes().expect(barrier, bytes, HERE); }
bool barrier_wait(const void* const barrier, const u32 parity) {
    machine->boxes().wait(barrier, parity, HERE);
    return true;
}
bool barrier_test(const void* const barrier, const u32 parity) {
    return machine->boxes().test(barrier, parity, HERE);
}
void bring_box(void* const to, const void* const map, const u32 column, const u32 row, const void* const barrier) {
    machine->boxes().bring(to, *static_cast<const BoxMap*>(map), column, row, barrier, HERE);
}
void bring_box_in_pair(void* const to, const void* const map, const u32 column, const u32 row, const void* const barrier) {
    bring_box(to, map, column, row, barrier);
}
u64 in_block_of_pair(const void* const here, const u32 number) { return machine->in_pair(here, number, HERE); }
void is_in_pair(const u64 at) { machine->is_in_pair(at, HERE); }
void pair_arrive() { machine->arrive_in_pair(HERE); }
void pair_wait() { machine->meet_pair(HERE); }
void barrier_arrive_in_pair(const u64 barrier) { machine->boxes().arrive(reinterpret_cast<const void*>(barrier), 0, HERE); }
void bring_bytes(void* const to, const void* const from, const u32 bytes, const void* const barrier) {
    machine->boxes().bring_bytes(to, from, bytes, barrier, HERE);
}
void copies_group() { me->copies.group(); }
void copies_done_but(const u32 most) { me->copies.done_but(*me, most); }
void copies_done() { me->copies.done(*me); }
void bulk_copy(void* to, const void* from, const u32 bytes) { me->copies.bulk(to, from, bytes, HERE); }
void bulk_commit() { me->copies.commit(); }
void bulk_read() { me->copies.read(*me); }
void bulk_done() { me->copies.written(*me); }

}  // namespace host

// ---- What the compiler's instrumentation calls

using host::me;
using host::memory;

#define ACCESS(name, bytes, kind)                                                      \
    extern "C" void __tsan_##name(void* p) {                                           \
        if (memory.holds(p) && me) memory.kind(*me, p, bytes, HERE_IN_KERNEL);         \
    }
#define HERE_IN_KERNEL host::Site(host::u64(__builtin_return_address(0)))
#define ACCESSES(bytes)                   \
    ACCESS(read##bytes, bytes, read)      \
    ACCESS(write##bytes, bytes, write)    \
    ACCESS(unaligned_read##bytes, bytes, read) \
    ACCESS(unaligned_write##bytes, bytes, write)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* p, std::size_t bytes) {
    if (memory.holds(p) && me) memory.read(*me, p, bytes, HERE_IN_KERNEL);
}
void __tsan_write_range(void* p, std::size_t bytes) {
    if (memory.holds(p) && me) memory.write(*me, p, bytes, HERE_IN_KERNEL);
}
static void copied(void* to, const void* from, const std::size_t bytes, const host::Site site) {
    if (!me) return;
    if (memory.holds(from)) memory.read(*me, from, bytes, site);
    if (memory.holds(to)) memory.write(*me, to, bytes, site);
}
void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
    copied(to, from, bytes, HERE_IN_KERNEL);
    return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
    copied(to, from, bytes, HERE_IN_KERNEL);
    return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
    if (memory.holds(to) && me) memory.write(*me, to, bytes, HERE_IN_KERNEL);
    return std::memset(to, value, bytes);
}
}
