/*
 * Kernels of Peerwarp's packs from C and C++: link with -lpeerwarp_c.
 *
 * Every function returns a PeerwarpResult; `peerwarp_last_error` has the words. Handles are made and freed here, and a function that
 * gets a handle that is null, freed, or of another kind returns PEERWARP_RESULT_INVALID. Functions may be called from any thread.
 */

#ifndef PEERWARP_H
#define PEERWARP_H

#include <stddef.h>
#include <stdint.h>

/**
 * What a function returns.
 */
typedef enum {
  /**
   * It did what it is for.
   */
  PEERWARP_RESULT_OK = 0,
  /**
   * An argument, a setting or a variable is not one of those allowed.
   */
  PEERWARP_RESULT_INVALID = 1,
  /**
   * This process has no GPU that it can use.
   */
  PEERWARP_RESULT_NO_GPU = 2,
  /**
   * The checker of simulated ranks found a fault of the kernel.
   */
  PEERWARP_RESULT_FOUND = 3,
  /**
   * A wait of a kernel ran out of time, and the world needs `peerwarp_world_reset`.
   */
  PEERWARP_RESULT_ABORTED = 4,
  /**
   * A file, the driver or another rank failed.
   */
  PEERWARP_RESULT_FAILED = 5,
  /**
   * A bug in Peerwarp, which is worth a report.
   */
  PEERWARP_RESULT_BUG = 6,
} PeerwarpResult;

/**
 * Memory on every rank that all ranks reach.
 */
typedef struct PeerwarpMemory PeerwarpMemory;

/**
 * A kernel of a pack, with its own memory on each rank of a world.
 */
typedef struct PeerwarpOperation PeerwarpOperation;

/**
 * Kernels that `peerwarp pack` compiled.
 */
typedef struct PeerwarpPack PeerwarpPack;

/**
 * The ranks that kernels run on.
 */
typedef struct PeerwarpWorld PeerwarpWorld;

/**
 * How a world is formed. 0 is the default of each.
 */
typedef struct {
  /**
   * Seconds that a wait of a kernel may last; 5 by default.
   */
  double wait_seconds;
  /**
   * Seconds that ranks wait for each other to come together; 60 by default.
   */
  double form_seconds;
  /**
   * How many launches of a rank may be under way at once, 1 to 16; 1 by default.
   */
  uint32_t launches_at_once;
  /**
   * 1: blocks of other kernels may run on the SMs of these kernels' blocks.
   */
  uint32_t share_sms;
  /**
   * 1: several ranks may have one GPU, to try and to test.
   */
  uint32_t share_gpus;
} PeerwarpWorldOptions;

/**
 * What is passed for a parameter of a kernel.
 */
typedef struct {
  /**
   * The parameter's name.
   */
  const char *name;
  /**
   * A tensor's address, on the rank's GPU or of simulated ranks on the host; of a number, the host's address of it.
   */
  void *data;
  /**
   * Bytes from there on.
   */
  uint64_t bytes;
  /**
   * The type of the elements or number: `f32`, `fp16`, `bf16`, `fp8`, `i32`, `u32`, `u64`. NULL: it is not compared.
   */
  const char *dtype;
} PeerwarpArgument;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Words of the last function that failed on this thread, in UTF-8; empty if none did. They stay until the next one fails here.
 */
const char *peerwarp_last_error(void);

/**
 * Makes the world of the processes that torchrun, mpirun, mpiexec or srun started, each a rank with a GPU. Without a launcher it is a
 * world of one rank, on the first GPU that the process sees.
 *
 * @param options NULL for all defaults.
 *
 * # Safety
 * Pointers are null or point to what their types say.
 */
PeerwarpResult peerwarp_world_launched(const PeerwarpWorldOptions *options,
                                       PeerwarpWorld **world);

/**
 * Makes the world of a process that takes the place of one that is gone, started as that one was, with the same rank, address and
 * secret. It makes the operations and the memory that the other ranks have, in the same order, and then calls
 * `peerwarp_world_replace`, as they do. Launches before are refused.
 *
 * @param options NULL for all defaults.
 *
 * # Safety
 * Pointers are null or point to what their types say.
 */
PeerwarpResult peerwarp_world_in_place_of(const PeerwarpWorldOptions *options,
                                          PeerwarpWorld **world);

/**
 * Makes a world of simulated ranks, 1 to 64, all in this process and without a GPU. `seed` decides the schedules.
 *
 * # Safety
 * `world` is null, or a pointer can be written there.
 */
PeerwarpResult peerwarp_world_simulated(uint32_t ranks, uint64_t seed, PeerwarpWorld **world);

/**
 * Writes how many ranks a world has, which of them this process is, and the number of its GPU among those that the process sees. A
 * simulated world has neither of the latter. What is NULL is not written.
 *
 * # Safety
 * Pointers are null, or numbers can be written there.
 */
PeerwarpResult peerwarp_world_place(PeerwarpWorld *world,
                                    uint32_t *ranks,
                                    uint32_t *rank,
                                    uint32_t *gpu);

/**
 * Waits until what is on a stream has ended, then does as `peerwarp_world_check`.
 *
 * # Safety
 * `stream` is null or a `cudaStream_t` or `hipStream_t` of the rank's GPU.
 */
PeerwarpResult peerwarp_world_finish(PeerwarpWorld *world, void *stream);

/**
 * Returns PEERWARP_RESULT_ABORTED if a wait of a kernel has run out of time on any rank. Waits for nothing.
 */
PeerwarpResult peerwarp_world_check(PeerwarpWorld *world);

/**
 * Clears flags, epochs and counters after PEERWARP_RESULT_ABORTED. All ranks call it.
 */
PeerwarpResult peerwarp_world_reset(PeerwarpWorld *world);

/**
 * Goes on without a rank that this one waits for in vain: as `peerwarp_world_go_on`, where the others do not wait for it any more.
 */
PeerwarpResult peerwarp_world_deactivate(PeerwarpWorld *world,
                                         uint32_t rank);

/**
 * Lets a new process take the place of a rank without which the world goes on. All active ranks call this when nothing of theirs runs,
 * and so does the new process. Ranks share fresh memory at the old addresses, and graphs stay valid.
 */
PeerwarpResult peerwarp_world_replace(PeerwarpWorld *world,
                                      uint32_t rank);

/**
 * Goes on with the ranks that call it after PEERWARP_RESULT_ABORTED, which all ranks that can do, and writes those that are not among
 * them as a mask: bit r is rank r's. Processes that are gone are not waited for. Kernels find zeros in place of what such a rank would
 * have sent. Operations and graphs stay as they are; what kernels had not finished is lost, as by `peerwarp_world_reset`.
 *
 * # Safety
 * `inactive` is null, or a number can be written there.
 */
PeerwarpResult peerwarp_world_go_on(PeerwarpWorld *world,
                                    uint64_t *inactive);

/**
 * Leaves a world. All ranks do, after their operations and memory are freed. While a world of GPUs is in use, the result is
 * PEERWARP_RESULT_INVALID, and the world stays. Where leaving itself fails, the world is gone all the same.
 */
PeerwarpResult peerwarp_world_free(PeerwarpWorld *world);

/**
 * Makes memory of `bytes` zeros on every rank, for parameters that are windows, and writes the address of this rank's part. All ranks
 * make it in the same order, with the same size.
 *
 * # Safety
 * Pointers are null, or what their types say can be written there.
 */
PeerwarpResult peerwarp_empty(PeerwarpWorld *world,
                              uint64_t bytes,
                              PeerwarpMemory **memory,
                              void **address);

/**
 * Frees memory, after what this process's GPU runs has ended.
 */
PeerwarpResult peerwarp_memory_free(PeerwarpMemory *memory);

/**
 * Opens the pack in a folder. All of its files are read, and compared with the hashes in its manifest.
 *
 * # Safety
 * `folder` is null or ends with NUL; `pack` is null, or a pointer can be written there.
 */
PeerwarpResult peerwarp_pack_open(const char *folder, PeerwarpPack **pack);

/**
 * Frees a pack. Its operations stay.
 */
PeerwarpResult peerwarp_pack_free(PeerwarpPack *pack);

/**
 * Makes a kernel of a pack an operation of a world. All ranks do, in the same order.
 *
 * @param key fields of the family's key: `elements=1000,dtype=f32`. The world says the number of ranks. The variant is the one for
 * just this key, else the one that covers it with as little more as there is.
 *
 * # Safety
 * Texts are null or end with NUL; `operation` is null, or a pointer can be written there.
 */
PeerwarpResult peerwarp_operation_new(PeerwarpPack *pack,
                                      PeerwarpWorld *world,
                                      const char *family,
                                      const char *key,
                                      PeerwarpOperation **operation);

/**
 * Launches the kernel of an operation on this rank's GPU, with an argument for each parameter, in any order. Allocates nothing on the
 * GPU, waits for nothing, and may be captured in a graph. `peerwarp_world_finish` tells of a wait that ran out of time.
 *
 * # Safety
 * Tensors are memory of the rank's GPU until the launch has ended; launches of a rank are in the order of one stream. `stream` is null
 * or a `cudaStream_t` or `hipStream_t` of that GPU. An operation that was captured is freed after its graph.
 */
PeerwarpResult peerwarp_launch(PeerwarpOperation *operation,
                               const PeerwarpArgument *arguments,
                               size_t count,
                               void *stream);

/**
 * Runs the kernel of an operation on simulated ranks, and waits for its end. `arguments` has `count` for rank 0, then for rank 1, and
 * so on; each rank has tensors of its own.
 *
 * # Safety
 * Tensors are memory of the host, and nothing else uses them meanwhile.
 */
PeerwarpResult peerwarp_simulate(PeerwarpOperation *operation,
                                 const PeerwarpArgument *arguments,
                                 size_t count);

/**
 * Frees an operation, after what this process's GPU runs has ended.
 */
PeerwarpResult peerwarp_operation_free(PeerwarpOperation *operation);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PEERWARP_H */
