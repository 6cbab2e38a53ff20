/* A C translation unit: the emitted headers are C, and mean the same as in C++. */
#include "sizes.h"

#include "variants.h"

#define ROW(ranks, dispatch, DISPATCH, combine, COMBINE) {ranks, sizeof(dispatch##_Args), sizeof(combine##_Args)},

const struct sizes sizes_in_c[] = {FOR_EACH_WORLD(ROW) {0, 0, 0}};
