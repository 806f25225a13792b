// Arguments of pack.cu; see abi.cuh. Apart, so that the encoder and the kernels of a step do not rebuild each other.
#pragma once
#include <stdint.h>

// How one record is stored
struct PackPlan {
    uint32_t units;           // its size, in units of 16 bytes
    uint32_t patches;
    uint8_t mode, wide, shifted, used;
    uint8_t table[16];        // the first `used` entries have codes
    uint32_t unused;
};

struct PackArgs {
    const uint16_t* rows_in;  // [rows][cols] bf16
    PackPlan* plans;          // [count]
    uint32_t* index;          // [count + 1]
    uint8_t* data;            // records, 16·index[count] bytes
    uint32_t* totals;         // the largest record, in units
    uint32_t rows, cols, tiles, records;
    uint32_t count, unused;   // records in all
};
