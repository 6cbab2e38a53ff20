/* Launches a kernel of a pack on this process's GPU, and prints what functions say. */
#include "peerwarp.h"
#include <stdio.h>
#include <stdlib.h>

static int said(const char *what, PeerwarpResult result) {
    if (result == PEERWARP_RESULT_OK) printf("%s: ok\n", what);
    else printf("%s: %d %s\n", what, (int)result, peerwarp_last_error());
    return result == PEERWARP_RESULT_OK;
}

#define SAY(call) said(#call, call)

int main(int count, char **arguments) {
    PeerwarpWorldOptions options = {-1, 0, 0, 0, 0};
    PeerwarpWorld *world;
    PeerwarpPack *pack;
    PeerwarpOperation *operation;
    PeerwarpMemory *memory;
    uint32_t ranks, rank, gpu, n = 4;
    float by = 1;
    void *window;
    if (count != 2) return 2;
    if (!SAY(peerwarp_world_launched(NULL, &world))) return 0;
    SAY(peerwarp_world_launched(&options, &world));
    options.wait_seconds = 30, options.share_sms = 2;
    SAY(peerwarp_world_launched(&options, &world));
    options.share_sms = 1, options.launches_at_once = 17;
    SAY(peerwarp_world_launched(&options, &world));
    options.launches_at_once = 2;
    SAY(peerwarp_world_in_place_of(&options, &world));
    if (!SAY(peerwarp_world_launched(&options, &world))) return 1;
    if (!SAY(peerwarp_world_place(world, &ranks, &rank, &gpu))) return 1;
    printf("rank %u of %u, GPU %u\n", rank, ranks, gpu);
    if (!SAY(peerwarp_pack_open(arguments[1], &pack))) return 1;
    if (!SAY(peerwarp_operation_new(pack, world, "shift", "most=4", &operation))) return 1;
    SAY(peerwarp_empty(world, 0, &memory, &window));
    if (!SAY(peerwarp_empty(world, 128, &memory, &window))) return 1;

    float *x = window, *out = x + 16;
    PeerwarpArgument all[4] = {{"x", x, 64, "f32"}, {"n", &n, 4, NULL}, {"by", &by, 4, "f32"}, {"out", out, 64, "f32"}};
    SAY(peerwarp_launch(operation, all, 4, NULL));
    SAY(peerwarp_world_finish(world, NULL));
    SAY(peerwarp_simulate(operation, all, 4));
    all[0].data = (void *)0x1004;
    SAY(peerwarp_launch(operation, all, 4, NULL));
    all[0].data = NULL;
    SAY(peerwarp_launch(operation, all, 4, NULL));
    all[0].data = (void *)0x1000, all[0].bytes = 60;
    SAY(peerwarp_launch(operation, all, 4, NULL));
    all[0].bytes = 64, all[3].data = (void *)0x1030;
    SAY(peerwarp_launch(operation, all, 4, NULL));
    all[3].data = out, n = 5;
    SAY(peerwarp_launch(operation, all, 4, NULL));

    SAY(peerwarp_world_free(world));
    SAY(peerwarp_memory_free(memory));
    SAY(peerwarp_operation_free(operation));
    SAY(peerwarp_world_check(world));
    SAY(peerwarp_world_reset(world));
    SAY(peerwarp_world_deactivate(world, 0));
    SAY(peerwarp_world_replace(world, 0));
    SAY(peerwarp_world_free(world));
    return !SAY(peerwarp_pack_free(pack));
}
