/* Counts the numbers of all ranks by bin, with a kernel out of a pack: each process is a rank with a GPU. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu.h"
#include "peerwarp.h"

#define NUMBERS 1048576
#define BINS 256

static void must(PeerwarpResult result) {
    if (result == PEERWARP_RESULT_OK) return;
    fprintf(stderr, "error: %s\n", peerwarp_last_error());
    exit(2);
}

static void gpu_must(cudaError_t error) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "error: %s\n", cudaGetErrorString(error));
    exit(2);
}

/* A number of a rank; a few are in no bin. */
static uint32_t number(uint32_t rank, uint32_t i) { return (i * 7919u + rank * 104729u) % (BINS + BINS / 16); }

int main(int count, char **arguments) {
    static uint32_t x[NUMBERS], found[BINS], expected[BINS];
    PeerwarpWorld *world;
    PeerwarpPack *pack;
    PeerwarpOperation *histogram;
    PeerwarpArgument passed[2] = {{"x", NULL, sizeof x, "u32"}, {"out", NULL, sizeof found, "u32"}};
    cudaStream_t stream;
    uint32_t ranks, rank, gpu, of, i, wrong = 0;
    int round;
    if (count != 2) {
        fprintf(stderr, "usage: with_library PACK\n");
        return 2;
    }

    /* The launcher says which rank this is; without one the world has one rank. */
    must(peerwarp_world_launched(NULL, &world));
    must(peerwarp_world_place(world, &ranks, &rank, &gpu));
    must(peerwarp_pack_open(arguments[1], &pack));
    must(peerwarp_operation_new(pack, world, "histogram", "numbers=1048576, bins=256", &histogram));

    gpu_must(cudaSetDevice((int)gpu));
    gpu_must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    gpu_must(cudaMalloc(&passed[0].data, sizeof x));
    gpu_must(cudaMalloc(&passed[1].data, sizeof found));
    for (of = 0; of < ranks; of++) {
        for (i = 0; i < NUMBERS; i++) {
            uint32_t n = number(of, i);
            if (of == rank) x[i] = n;
            if (n < BINS) expected[n]++;
        }
    }
    gpu_must(cudaMemcpy(passed[0].data, x, sizeof x, cudaMemcpyHostToDevice));

    for (round = 0; round < 20; round++) {
        must(peerwarp_launch(histogram, passed, 2, stream));
        must(peerwarp_world_finish(world, stream));
        gpu_must(cudaMemcpy(found, passed[1].data, sizeof found, cudaMemcpyDeviceToHost));
        for (i = 0; i < BINS; i++) wrong += found[i] != expected[i];
    }
    printf("rank %" PRIu32 " of %" PRIu32 ", GPU %" PRIu32 ": 20 launches, %" PRIu32 " wrong\n", rank, ranks, gpu, wrong);

    must(peerwarp_operation_free(histogram));
    must(peerwarp_pack_free(pack));
    must(peerwarp_world_free(world));
    return wrong != 0;
}
