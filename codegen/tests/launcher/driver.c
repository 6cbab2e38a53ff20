/* Uses the header of the kernel `sample` as a C program does: prints the layout that C gives the arguments, then calls
 * what the launcher offers, right and wrong. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "sample.h"

#define ONE(member) ((void)(args.member = (void*)0x1000))
#define EVERY(member) \
    do { \
        for (i = 0; i < SAMPLE_RANKS; ++i) args.member[i] = (void*)(size_t)(0x1000 * (i + 1)); \
    } while (0)
#define SET_LOCAL ONE
#define SET_EPOCH ONE
#define SET_SYMMETRIC EVERY
#define SET_FLAGS EVERY
#define SET_STATUS EVERY
#define SET(member, kind, bytes) \
    if (bytes > 0) SET_##kind(member);

#define LAYOUT(member, kind, bytes) \
    printf("%s %lu %lu %lu\n", #member, (unsigned long)offsetof(sample_Args, member), \
           (unsigned long)sizeof(args.member), (unsigned long)(bytes));

static sample_Args args;

static void layout(void) {
    SAMPLE_BUFFERS(LAYOUT)
    LAYOUT(small, SCALAR, 0)
    LAYOUT(big, SCALAR, 0)
    LAYOUT(wait_budget_ns, SCALAR, 0)
    LAYOUT(rank, SCALAR, 0)
    printf("all 0 %lu %lu\n", (unsigned long)sizeof args, (unsigned long)SAMPLE_ARGS_BYTES);
}

static void fill(void) {
    int i;
    memset(&args, 0, sizeof args);
    SAMPLE_BUFFERS(SET)
    args.wait_budget_ns = 1;
    args.rank = SAMPLE_RANKS - 1;
}

#ifdef RUNTIME
#include "fake_runtime.h"

/* The stub that the compiler makes for the kernel, whose address names it. */
extern char sample;
const void* fake_entry(void) {
    return &sample;
}
const void* fake_args(void) {
    return &args;
}

static void launch(const char* what) {
    const int code = sample_launch(&args, &fake);
    printf("%s: %d, %s\n", what, code, sample_error(code));
}

static void calls(void) {
    int blocks = -1;
    int code;
    fake.processors = 1;
    fake.blocks_each = SAMPLE_GRID_BLOCKS - 1;
    fill();
    launch("too few processors");
    fake.blocks_each = SAMPLE_GRID_BLOCKS;
    launch("just enough");
    launch("again");
    printf("occupancy was asked for %d times\n", fake.occupancy_queries);
    fake.device = 1;
    launch("another device");
    printf("occupancy was asked for %d times\n", fake.occupancy_queries);
    printf("shared memory asked for: %d\n", fake.shared_asked_for);
    fake.launch_error = 700;
    launch("an error of the launch");
    fake.launch_error = 0;
    fake.get_device_error = 100;
    launch("no device");
    code = sample_resident_blocks(&blocks);
    printf("resident blocks: %d, %s\n", code, sample_error(code));
    fake.get_device_error = 0;
    fake.processors = 7;
    code = sample_resident_blocks(&blocks);
    printf("resident blocks: %d, %d\n", code, blocks);
    code = sample_resident_blocks(NULL);
    printf("resident blocks nowhere: %d, %s\n", code, sample_error(code));
    code = sample_launch(NULL, NULL);
    printf("no arguments: %d, %s\n", code, sample_error(code));

    args.rank = SAMPLE_RANKS;
    launch("rank too large");
    fill();
    args.wait_budget_ns = 0;
    launch("no budget");
    fill();
    args.x = NULL;
    launch("no x");
    fill();
    args.inbox[SAMPLE_RANKS - 1] = NULL;
    launch("an inbox too few");
    fill();
    args.status[1] = (PeerwarpStatus*)0x1008;
    launch("a status not aligned");
    fill();
    args.unused = NULL;
    launch("an unused buffer is missing");
    printf("unknown: %s; %s\n", sample_error(-50), sample_error(-1000));
}
#else
static void calls(void) {}
#endif

int main(void) {
    layout();
    fill();
    calls();
    return 0;
}
