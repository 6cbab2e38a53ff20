/* Runs kernels of a pack on simulated ranks, then passes what is wrong to every function and prints what it says. */
#include "peerwarp.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 2
#define NUMBERS 1000
#define BINS 256

static void must(PeerwarpResult result) {
    if (result == PEERWARP_RESULT_OK) return;
    printf("failed: %s\n", peerwarp_last_error());
    exit(1);
}

static void say(const char *what, PeerwarpResult result) {
    if (result == PEERWARP_RESULT_OK) printf("%s: ok\n", what);
    else printf("%s: %d %s\n", what, (int)result, peerwarp_last_error());
}

#define SAY(call) say(#call, call)

static void count(PeerwarpPack *pack, PeerwarpWorld *world) {
    static uint32_t x[RANKS][NUMBERS], out[RANKS][BINS], expected[BINS];
    PeerwarpOperation *histogram;
    PeerwarpArgument arguments[RANKS][2];
    unsigned wrong = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < NUMBERS; i++) {
            x[rank][i] = (uint32_t)(i * 7919 + rank * 104729) % 300;
            if (x[rank][i] < BINS) expected[x[rank][i]]++;
        }
        PeerwarpArgument of_rank[2] = {
            {"out", out[rank], sizeof out[rank], "u32"},
            {"x", x[rank], sizeof x[rank], NULL},
        };
        memcpy(arguments[rank], of_rank, sizeof of_rank);
    }
    must(peerwarp_operation_new(pack, world, "histogram", "numbers=1000, bins=256", &histogram));
    for (int round = 0; round < 3; round++) {
        memset(out, 0xff, sizeof out);
        must(peerwarp_simulate(histogram, arguments[0], 2));
        for (int rank = 0; rank < RANKS; rank++)
            for (int bin = 0; bin < BINS; bin++) wrong += out[rank][bin] != expected[bin];
    }
    printf("histogram: %u wrong\n", wrong);
    must(peerwarp_operation_free(histogram));
}

/* Numbers that are passed by value, rows that a number counts, and memory beyond them. */
static void shift(PeerwarpOperation *operation) {
    static float x[RANKS][16], out[RANKS][16];
    uint32_t rows[RANKS] = {2, 3};
    float by = 0.5f;
    unsigned wrong = 0;
    PeerwarpArgument arguments[RANKS][4];
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < 16; i++) x[rank][i] = (float)(100 * rank + i), out[rank][i] = -1;
        PeerwarpArgument of_rank[4] = {
            {"x", x[rank], sizeof x[rank], "f32"},
            {"out", out[rank], sizeof out[rank], "f32"},
            {"n", &rows[rank], sizeof rows[rank], "u32"},
            {"by", &by, sizeof by, "f32"},
        };
        memcpy(arguments[rank], of_rank, sizeof of_rank);
    }
    must(peerwarp_simulate(operation, arguments[0], 4));
    for (int rank = 0; rank < RANKS; rank++)
        for (unsigned i = 0; i < 16; i++) wrong += out[rank][i] != (i < 4 * rows[rank] ? x[rank][i] + by : -1);
    printf("shift: %u wrong\n", wrong);
}

static void wrong_arguments(PeerwarpOperation *operation) {
    static float x[RANKS][16], out[RANKS][16];
    uint32_t n = 4, many = 5;
    float by = 1;
    PeerwarpArgument good[2 * 4], all[2 * 4];
    for (int rank = 0; rank < RANKS; rank++) {
        PeerwarpArgument of_rank[4] = {
            {"x", x[rank], sizeof x[rank], "f32"},
            {"out", out[rank], sizeof out[rank], "f32"},
            {"n", &n, sizeof n, "u32"},
            {"by", &by, sizeof by, "f32"},
        };
        memcpy(good + 4 * rank, of_rank, sizeof of_rank);
    }
#define WITH(member, at, value) \
    memcpy(all, good, sizeof good), all[at].member = value, say(#member " of " #at " is " #value, peerwarp_simulate(operation, all, 4))
    SAY(peerwarp_simulate(operation, good, 4));
    SAY(peerwarp_simulate(operation, NULL, 4));
    SAY(peerwarp_simulate(operation, good, 3));
    WITH(name, 0, NULL);
    WITH(name, 4, "y");
    WITH(name, 5, "x");
    WITH(name, 6, "\xff");
    WITH(dtype, 0, "f16");
    WITH(dtype, 6, "i32");
    WITH(data, 1, NULL);
    WITH(data, 6, NULL);
    WITH(bytes, 4, 63);
    WITH(bytes, 2, 8);
    WITH(data, 2, &many);
    memcpy(all, good, sizeof good), all[5].data = out[0] + 8, all[5].bytes = 64;
    say("outputs of two ranks", peerwarp_simulate(operation, all, 4) == PEERWARP_RESULT_INVALID ? 0 : 1);
    printf("%s\n", strncmp(peerwarp_last_error(), "memory of out = 0x", 18) ? peerwarp_last_error() : "memory of out");
    SAY(peerwarp_launch(operation, good, 4, NULL));
}

int main(int count_, char **arguments) {
    PeerwarpWorld *world, *other;
    PeerwarpPack *pack, *none;
    PeerwarpMemory *memory;
    void *address;
    PeerwarpOperation *operation;
    uint32_t ranks = 0, rank;
    if (count_ != 2) return 2;
    printf("at first: \"%s\"\n", peerwarp_last_error());
    must(peerwarp_world_simulated(RANKS, 7, &world));
    must(peerwarp_pack_open(arguments[1], &pack));
    must(peerwarp_world_place(world, &ranks, NULL, NULL));
    printf("ranks: %u\n", ranks);
    count(pack, world);

    SAY(peerwarp_world_simulated(0, 0, &other));
    printf("other: %s\n", other ? "a handle" : "null");
    SAY(peerwarp_world_simulated(65, 0, &other));
    SAY(peerwarp_world_simulated(2, 0, NULL));
    SAY(peerwarp_pack_open(NULL, &none));
    SAY(peerwarp_pack_open("/nowhere", &none));
    SAY(peerwarp_world_place(world, NULL, &rank, NULL));
    SAY(peerwarp_world_finish(world, NULL));
    SAY(peerwarp_world_check(NULL));
    SAY(peerwarp_world_reset((PeerwarpWorld *)pack));
    SAY(peerwarp_world_deactivate(world, 1));
    SAY(peerwarp_world_replace(world, 1));
    SAY(peerwarp_world_go_on(world, NULL));
    SAY(peerwarp_empty(world, 16, &memory, &address));
    SAY(peerwarp_empty(world, 16, &memory, NULL));
    SAY(peerwarp_operation_new(NULL, world, "shift", "most=4", &operation));
    SAY(peerwarp_operation_new(pack, (PeerwarpWorld *)0x1234, "shift", "most=4", &operation));
    SAY(peerwarp_operation_new(pack, world, "shfit", "most=4", &operation));
    SAY(peerwarp_operation_new(pack, world, "shift", "most", &operation));
    SAY(peerwarp_operation_new(pack, world, "shift", "least=4", &operation));
    SAY(peerwarp_operation_new(pack, world, "shift", "most=few", &operation));
    SAY(peerwarp_operation_new(pack, world, "shift", "most=64", &operation));
    SAY(peerwarp_operation_new(pack, world, "shift", "most=4,ranks=1", &operation));
    SAY(peerwarp_operation_new(pack, world, "shift", NULL, &operation));

    must(peerwarp_operation_new(pack, world, "racy", "", &operation));
    uint32_t out[RANKS][4];
    PeerwarpArgument racy[RANKS] = {{"out", out[0], sizeof out[0], "u32"}, {"out", out[1], sizeof out[1], "u32"}};
    PeerwarpResult raced = peerwarp_simulate(operation, racy, 1);
    printf("racy: %d %s\n", (int)raced, strstr(peerwarp_last_error(), "race") ? "a race" : peerwarp_last_error());
    must(peerwarp_operation_free(operation));

    must(peerwarp_operation_new(pack, world, "shift", "most=4", &operation));
    must(peerwarp_pack_free(pack));
    shift(operation);
    wrong_arguments(operation);
    SAY(peerwarp_pack_free(pack));
    SAY(peerwarp_operation_free((PeerwarpOperation *)world));
    SAY(peerwarp_memory_free((PeerwarpMemory *)operation));
    must(peerwarp_operation_free(operation));
    SAY(peerwarp_simulate(operation, NULL, 0));
    must(peerwarp_world_free(world));
    SAY(peerwarp_world_free(world));
    return 0;
}
